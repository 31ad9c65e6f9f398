// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// rules adds rules on the node that send TCP port 80 to a pod, masqueraded, and drop port
// 81.
func rules(t *testing.T, node *Host, to netip.AddrPort) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(node.ns)))
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Name: "by-hand", Family: nftables.TableFamilyIPv4})
	chain := func(name string, typ nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
		return conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: typ, Hooknum: hook, Priority: prio})
	}
	port := func(port byte, then ...expr.Any) []expr.Any {
		return append([]expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, port}},
		}, then...)
	}
	target := to.Addr().As4()
	pre := chain("pre", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	conn.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: port(80,
		&expr.Immediate{Register: 1, Data: target[:]},
		&expr.Immediate{Register: 2, Data: []byte{byte(to.Port() >> 8), byte(to.Port())}},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	)})
	raw := chain("raw", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	conn.AddRule(&nftables.Rule{Table: table, Chain: raw, Exprs: port(81, &expr.Verdict{Kind: expr.VerdictDrop})})
	post := chain("post", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	conn.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: []expr.Any{&expr.Masq{}}})
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

// TestClientPortsRotate checks that each client gets a port of its own, whatever protocol
// the previous client used. Ports in use are skipped, and so is the port that the client
// dials.
func TestClientPortsRotate(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	startEcho(t, pod)
	taken, err := client.Listen(t.Context(), "tcp4", ":33001")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	for _, next := range []struct {
		proto string
		port  uint16
	}{{"tcp", 33000}, {"tcp", 33002}, {"udp", 33003}, {"tcp", 33004}} {
		a, err := client.Ask(t.Context(), Query{Proto: next.proto, To: netip.AddrPortFrom(pod.IPv4, 8080)})
		if err != nil || a.Outcome != Answered || a.From.Port() != next.port {
			t.Errorf("%s: %s from %s, %v; want port %d", next.proto, a.Outcome, a.From, err, next.port)
		}
	}
	a, err := client.Ask(t.Context(), Query{Proto: "udp", To: netip.AddrPortFrom(client.IPv4, 33005)})
	if err != nil || a.Outcome != Refused || a.From.Port() != 33006 {
		t.Errorf("to port 33005 of its own: %s from %s, %v; want it refused, from port 33006", a.Outcome, a.From, err)
	}
}

func TestOutcomes(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	startEcho(t, pod)
	acceptAndClose(t, pod)
	rules(t, lab.Node, netip.AddrPortFrom(pod.IPv4, 8080))
	vip := netip.MustParseAddr("10.96.0.10")
	for name, tc := range map[string]struct {
		query Query
		want  Answer
	}{
		"through a service": {
			Query{Proto: "tcp", To: netip.AddrPortFrom(vip, 80)},
			Answer{Backend: "pod", At: netip.AddrPortFrom(pod.IPv4, 8080), Client: netip.MustParseAddrPort("10.244.1.1:0")},
		},
		"nobody listens, TCP":      {Query{Proto: "tcp", To: netip.AddrPortFrom(pod.IPv4, 9)}, Answer{Outcome: Refused}},
		"nobody listens, UDP":      {Query{Proto: "udp", To: netip.AddrPortFrom(pod.IPv4, 9)}, Answer{Outcome: Refused}},
		"nobody listens, UDP IPv6": {Query{Proto: "udp", To: netip.AddrPortFrom(pod.IPv6, 9)}, Answer{Outcome: Refused}},
		"dropped, TCP":             {Query{Proto: "tcp", To: netip.AddrPortFrom(pod.IPv4, 81), Timeout: SilenceTimeout}, Answer{Outcome: TimedOut}},
		"dropped, UDP":             {Query{Proto: "udp", To: netip.AddrPortFrom(pod.IPv4, 81), Timeout: SilenceTimeout}, Answer{Outcome: TimedOut}},
		"nobody's address, TCP":    {Query{Proto: "tcp", To: netip.AddrPortFrom(vip, 82)}, Answer{Outcome: Unreachable}},
		"nobody's address, UDP":    {Query{Proto: "udp", To: netip.AddrPortFrom(vip, 82)}, Answer{Outcome: Unreachable}},
		"nobody's IPv6 address":    {Query{Proto: "tcp", To: netip.MustParseAddrPort("[fd00:10:96::10]:80")}, Answer{Outcome: Unreachable}},
		"hung up":                  {Query{Proto: "tcp", To: netip.AddrPortFrom(pod.IPv4, 8081)}, Answer{Outcome: Broken}},
	} {
		t.Run(name, func(t *testing.T) {
			got := ask(t, client, tc.query)
			if got.Took == 0 {
				t.Error("took no time")
			}
			if masq := got.Masqueraded(); masq != (got.Outcome == Answered) {
				t.Errorf("masqueraded = %v, got %+v", masq, got)
			}
			got.Took, got.From = 0, netip.AddrPort{}
			got.Client = netip.AddrPortFrom(got.Client.Addr(), tc.want.Client.Port())
			if diff := cmp.Diff(tc.want, got, cmp.Comparer(samePort)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// acceptAndClose accepts connections on port 8081 and closes them on the first data.
func acceptAndClose(t *testing.T, h *Host) {
	t.Helper()
	l, err := h.Listen(t.Context(), "tcp", netip.AddrPortFrom(h.IPv4, 8081).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go Serve(l, func(c net.Conn) { _, _ = c.Read(make([]byte, 1)) })
}

func TestEveryRefusalArrives(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	for _, tc := range []struct {
		proto, to string
		want      Outcome
	}{
		{"tcp", netip.AddrPortFrom(pod.IPv4, 9).String(), Refused},
		{"tcp", netip.AddrPortFrom(pod.IPv6, 9).String(), Refused},
		{"udp", netip.AddrPortFrom(pod.IPv4, 9).String(), Refused},
		{"udp", netip.AddrPortFrom(pod.IPv6, 9).String(), Refused},
		{"udp", "10.96.0.10:80", Unreachable},
		{"udp", "[fd00:10:96::10]:80", Unreachable},
	} {
		q := Query{Proto: tc.proto, To: netip.MustParseAddrPort(tc.to), Timeout: DefaultTimeout}
		for i := range 100 {
			if a := ask(t, client, q); a.Outcome != tc.want {
				t.Fatalf("question %d over %s to %s: %s, want %s", i, q.Proto, q.To, a.Outcome, tc.want)
			}
		}
	}
}

// TestOwnRules checks UDP packets that the client's own rules drop. The result must be
// the same as for packets dropped on the way.
func TestOwnRules(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}})
	pod := lab.Host("pod")
	conn, err := nftables.New(nftables.WithNetNSFd(int(pod.ns)))
	if err != nil {
		t.Fatal(err)
	}
	table := conn.AddTable(&nftables.Table{Name: "own", Family: nftables.TableFamilyINet})
	chain := conn.AddChain(&nftables.Chain{
		Name: "output", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter,
	})
	for port, then := range map[byte]expr.Any{
		7: &expr.Verdict{Kind: expr.VerdictDrop},
		9: &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH},
	} {
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: 1},
			&expr.Cmp{Register: 1, Data: []byte{0, port}},
			then,
		}})
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	for port, want := range map[uint16]Outcome{7: TimedOut, 9: Refused} {
		for _, addr := range []netip.Addr{lab.Node.IPv4, lab.Node.IPv6} {
			q := Query{Proto: "udp", To: netip.AddrPortFrom(addr, port)}
			if want == TimedOut {
				q.Timeout = SilenceTimeout
			}
			if a := ask(t, pod, q); a.Outcome != want {
				t.Errorf("%s: %s, want %s", q.To, a.Outcome, want)
			}
		}
	}
}

func TestOpenConversation(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	echo, err := pod.Echo("other-name", 8080)
	if err != nil {
		t.Fatal(err)
	}
	for proto, after := range map[string]Outcome{"tcp": Broken, "udp": Refused} {
		c, a, err := client.Open(t.Context(), Query{Proto: proto, To: netip.AddrPortFrom(pod.IPv6, 8080)})
		if err != nil || a.Outcome != Answered {
			t.Fatalf("open %s: %+v, %v", proto, a, err)
		}
		defer c.Close()
		for range 3 {
			a, err := c.Ask(t.Context())
			if err != nil || a.Backend != "other-name" || a.From != a.Client {
				t.Errorf("ask %s: %+v, %v", proto, a, err)
			}
		}
		defer func() {
			if a, err := c.Ask(t.Context()); err != nil || a.Outcome != after {
				t.Errorf("ask %s after the server closed: %s, %v, want %s", proto, a.Outcome, err, after)
			}
		}()
	}
	if err := echo.Close(); err != nil {
		t.Error(err)
	}
}

func TestLoad(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	echo, err := pod.Echo("", 8080)
	if err != nil {
		t.Fatal(err)
	}
	query := Query{Proto: "tcp", To: netip.AddrPortFrom(pod.IPv4, 8080)}
	r := client.Load(t.Context(), LoadConfig{Query: query, Workers: 4, Total: 500}).Wait()
	if r.Connections != 500 || r.Lost() != 0 || r.Backends["pod"].Count != 500 {
		t.Errorf("counted load: %s", r)
	}
	load := client.Load(t.Context(), LoadConfig{Query: query, Workers: 2})
	until(t, func() bool { return load.Report().Connections > 50 })
	if err := echo.Close(); err != nil {
		t.Error(err)
	}
	until(t, func() bool { return load.Report().Outcomes[Refused] > 5 })
	r = load.Stop()
	if r.Lost() < 5 || len(r.Errors) != 0 || r.Outcomes[Answered] != r.Backends["pod"].Count {
		t.Errorf("load after the server closed: %s", r)
	}
}

// until polls for a condition that must soon hold.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("did not happen within a minute")
		}
		time.Sleep(time.Millisecond)
	}
}
