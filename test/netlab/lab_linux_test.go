// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/test/kit"
)

// role selects another role of the test program, as a process in a lab.
const role = "NETLAB_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "list":
		listInterfaces()
	case "wait":
		fmt.Println("waiting")
		select {}
	default:
		os.Exit(Main(m.Run))
	}
}

func listInterfaces() {
	links, err := net.Interfaces()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, l := range links {
		fmt.Println(l.Name)
	}
}

// self is this program in another role.
func self(as string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), role+"="+as)
	return cmd
}

func startEcho(t *testing.T, h *Host) {
	t.Helper()
	_, err := h.Echo("", 8080)
	kit.Must(t, err)
}

func ask(t *testing.T, h *Host, q Query) Answer {
	t.Helper()
	a, err := h.Ask(t.Context(), q)
	kit.Need(t, err == nil, "%s asks %s %s: %v", h.Name, q.Proto, q.To, err)
	return a
}

// forms are the combinations of protocol and client address.
var forms = []struct {
	proto string
	like  netip.Addr
}{
	{"tcp", netip.IPv4Unspecified()},
	{"udp", netip.IPv4Unspecified()},
	{"tcp", netip.IPv6Unspecified()},
	{"udp", netip.IPv6Unspecified()},
}

func TestAllHostsReachable(t *testing.T) {
	for name, cfg := range map[string]Config{
		"routed pods":      {Pods: []string{"pod-1", "pod-2"}, Remote: []string{"far"}, Clients: []string{"client"}},
		"pods on a bridge": {Pods: []string{"pod-1", "pod-2"}, Remote: []string{"far"}, Clients: []string{"client"}, Bridge: "cni0"},
	} {
		t.Run(name, func(t *testing.T) {
			lab := Start(t, cfg)
			names := []string{"pod-1", "pod-2", "far", "client", NodeName, OtherName}
			for _, to := range names {
				startEcho(t, lab.Host(to))
			}
			for _, from := range names {
				for _, to := range names {
					checkDirect(t, lab.Host(from), lab.Host(to))
				}
			}
		})
	}
}

// checkDirect sends a request in every form, and expects that no address was translated.
// The exception is a node, which uses its address in the pod network towards its own
// pods.
func checkDirect(t *testing.T, from, to *Host) {
	t.Helper()
	for _, f := range forms {
		q := Query{Proto: f.proto, To: netip.AddrPortFrom(to.Addr(f.like), 8080)}
		got := ask(t, from, q)
		want := Answer{Backend: to.Name, At: q.To, Client: got.From}
		got.Took = 0
		want.From = got.From
		diff := cmp.Diff(want, got, cmp.Comparer(sameAddr), cmp.Comparer(samePort))
		kit.Need(t, diff == "", "%s asks %s %s (-want +got):\n%s", from.Name, q.Proto, q.To, diff)
		isNode := from.Name == NodeName || from.Name == OtherName
		if !isNode && got.From.Addr() != from.Addr(f.like) {
			t.Errorf("%s asks %s %s from %s, want %s", from.Name, q.Proto, q.To, got.From.Addr(), from.Addr(f.like))
		}
	}
}

func sameAddr(a, b netip.Addr) bool     { return a == b }
func samePort(a, b netip.AddrPort) bool { return a == b }

func TestSourceOfChoice(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	startEcho(t, pod)
	second := netip.MustParseAddr("192.0.2.200")
	kit.Must(t, client.AddAddr(second))
	for name, from := range map[string]netip.AddrPort{
		"address and port": netip.AddrPortFrom(second, 5555),
		"port only":        netip.AddrPortFrom(netip.Addr{}, 5556),
		"address only":     netip.AddrPortFrom(second, 0),
	} {
		t.Run(name, func(t *testing.T) {
			for _, proto := range []string{"tcp", "udp", "tcp", "udp"} { // repeated at once, too
				a := ask(t, client, Query{Proto: proto, To: netip.AddrPortFrom(pod.IPv4, 8080), From: from})
				kit.Check(t, !from.Addr().IsValid() || a.Client.Addr() == from.Addr(),
					"%s client seen as %s, want %s", proto, a.Client, from)
				kit.Check(t, from.Port() == 0 || a.Client.Port() == from.Port(),
					"%s client seen as %s, want %s", proto, a.Client, from)
			}
		})
	}
	kit.Must(t, client.DelAddr(second))
	_, err := client.Ask(t.Context(), Query{Proto: "tcp", To: netip.AddrPortFrom(pod.IPv4, 8080), From: netip.AddrPortFrom(second, 0)})
	kit.Check(t, err != nil, "asked from an address that was removed")
}

// TestAddressesUsableAtOnce checks that an address of the lab, or one added later, can be
// used without a delay.
func TestAddressesUsableAtOnce(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	inUse := func(h *Host, a netip.Addr) {
		t.Helper()
		ok, err := h.routed([]netlink.Addr{{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))}})
		kit.Check(t, ok && err == nil, "%s of %s is not in use, %v", a, h.Name, err)
	}
	for _, h := range []*Host{lab.Node, lab.Other, lab.Host("pod"), lab.Host("client")} {
		inUse(h, h.IPv4)
		inUse(h, h.IPv6)
	}
	for i := range 8 {
		a := netip.MustParseAddr(fmt.Sprintf("2001:db8:2::2%02d", i))
		kit.Must(t, lab.Host("client").AddAddr(a))
		inUse(lab.Host("client"), a)
	}
}

func TestProcesses(t *testing.T) {
	lab, err := New(Config{Pods: []string{"pod"}})
	if errors.Is(err, ErrNotAllowed) {
		t.Skip(err)
	}
	kit.Must(t, err)
	var out strings.Builder
	list := self("list")
	list.Stdout = &out
	kit.Must(t, errors.Join(lab.Node.Start(list), list.Wait()))
	kit.Same(t, "interfaces of the node (-want +got)", []string{"lo", "eth0", "veth-pod"}, strings.Fields(out.String()))
	wait := self("wait")
	pipe, err := wait.StdoutPipe()
	kit.Must(t, err)
	kit.Must(t, lab.Node.Start(wait))
	_, err = pipe.Read(make([]byte, 1))
	kit.Must(t, err)
	err = lab.Close()
	kit.Check(t, err == nil, "%v", err)
	if err := wait.Wait(); err == nil || wait.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("process left in a closed lab ended with %v, want killed", err)
	}
}

func TestDoRestoresNamespace(t *testing.T) {
	home, err := os.Readlink("/proc/thread-self/ns/net")
	kit.Must(t, err)
	lab := Start(t, Config{Pods: []string{"pod"}})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			err := lab.Host("pod").Do(func() error {
				there, err := os.Readlink("/proc/thread-self/ns/net")
				kit.Check(t, there != home, "Do runs outside the lab")
				return err
			})
			kit.Check(t, err == nil, "%v", err)
		})
	}
	all.Wait()
	for range 20 { // as many goroutines, each with the thread to itself
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			here, err := os.Readlink("/proc/thread-self/ns/net")
			kit.Check(t, err == nil && here == home, "a goroutine runs in %s, %v, want %s", here, err, home)
		})
	}
	all.Wait()
}

func TestWithoutRoot(t *testing.T) {
	if os.Getuid() != 0 || os.Getenv(reexecVariable) != "" {
		return // this run is not root
	}
	if err := Allowed(); err != nil {
		t.Skip(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSourceOfChoice$", "-test.v")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	kit.Check(t, err == nil && strings.Contains(string(out), "--- PASS: TestSourceOfChoice"),
		"lab as another user: %v\n%s", err, out)
}

func TestBadConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		cfg  Config
		want string
	}{
		"long name":  {Config{Pods: []string{"a-long-name"}}, `host name "a-long-name": must have 1 to 10 characters`},
		"empty name": {Config{Clients: []string{""}}, `host name "": must have 1 to 10 characters`},
		"same name":  {Config{Pods: []string{"a"}, Remote: []string{"a"}}, `host name "a": taken`},
		"own name":   {Config{Pods: []string{"gateway"}}, `host name "gateway": taken`},
		"too many":   {Config{Pods: make([]string, 81)}, "lab with 81 hosts of one sort: at most 80 fit"},
	} {
		t.Run(name, func(t *testing.T) {
			lab, err := New(tc.cfg)
			kit.Check(t, lab == nil && err != nil && err.Error() == tc.want,
				"New = %v, %v, want nil, %s", lab, err, tc.want)
		})
	}
}

// rules adds rules on the node that send TCP port 80 to a pod, masqueraded, and drop port
// 81.
func rules(t *testing.T, node *Host, to netip.AddrPort) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(node.ns)))
	kit.Must(t, err)
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
	kit.Must(t, conn.Flush())
}

// TestClientPortsRotate checks that each client gets a port of its own, whatever protocol
// the previous client used. Ports in use are skipped, and so is the port that the client
// dials.
func TestClientPortsRotate(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	startEcho(t, pod)
	taken, err := client.Listen(t.Context(), "tcp4", ":33001")
	kit.Must(t, err)
	t.Cleanup(func() { taken.Close() })
	for _, next := range []struct {
		proto string
		port  uint16
	}{{"tcp", 33000}, {"tcp", 33002}, {"udp", 33003}, {"tcp", 33004}} {
		a, err := client.Ask(t.Context(), Query{Proto: next.proto, To: netip.AddrPortFrom(pod.IPv4, 8080)})
		kit.Check(t, err == nil && a.Outcome == Answered && a.From.Port() == next.port,
			"%s: %s from %s, %v; want port %d", next.proto, a.Outcome, a.From, err, next.port)
	}
	a, err := client.Ask(t.Context(), Query{Proto: "udp", To: netip.AddrPortFrom(client.IPv4, 33005)})
	kit.Check(t, err == nil && a.Outcome == Refused && a.From.Port() == 33006,
		"to port 33005 of its own: %s from %s, %v; want it refused, from port 33006", a.Outcome, a.From, err)
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
			kit.Check(t, got.Took != 0, "took no time")
			masq := got.Masqueraded()
			kit.Check(t, masq == (got.Outcome == Answered), "masqueraded = %v, got %+v", masq, got)
			got.Took, got.From = 0, netip.AddrPort{}
			got.Client = netip.AddrPortFrom(got.Client.Addr(), tc.want.Client.Port())
			kit.Same(t, "(-want +got)", tc.want, got, cmp.Comparer(samePort))
		})
	}
}

// acceptAndClose accepts connections on port 8081 and closes them on the first data.
func acceptAndClose(t *testing.T, h *Host) {
	t.Helper()
	l, err := h.Listen(t.Context(), "tcp", netip.AddrPortFrom(h.IPv4, 8081).String())
	kit.Must(t, err)
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
			a := ask(t, client, q)
			kit.Need(t, a.Outcome == tc.want, "question %d over %s to %s: %s, want %s", i, q.Proto, q.To, a.Outcome, tc.want)
		}
	}
}

// TestOwnRules checks UDP packets that the client's own rules drop. The result must be
// the same as for packets dropped on the way.
func TestOwnRules(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}})
	pod := lab.Host("pod")
	conn, err := nftables.New(nftables.WithNetNSFd(int(pod.ns)))
	kit.Must(t, err)
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
	kit.Must(t, conn.Flush())
	for port, want := range map[uint16]Outcome{7: TimedOut, 9: Refused} {
		for _, addr := range []netip.Addr{lab.Node.IPv4, lab.Node.IPv6} {
			q := Query{Proto: "udp", To: netip.AddrPortFrom(addr, port)}
			if want == TimedOut {
				q.Timeout = SilenceTimeout
			}
			a := ask(t, pod, q)
			kit.Check(t, a.Outcome == want, "%s: %s, want %s", q.To, a.Outcome, want)
		}
	}
}

func TestOpenConversation(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	echo, err := pod.Echo("other-name", 8080)
	kit.Must(t, err)
	for proto, after := range map[string]Outcome{"tcp": Broken, "udp": Refused} {
		c, a, err := client.Open(t.Context(), Query{Proto: proto, To: netip.AddrPortFrom(pod.IPv6, 8080)})
		kit.Need(t, err == nil && a.Outcome == Answered, "open %s: %+v, %v", proto, a, err)
		defer c.Close()
		for range 3 {
			a, err := c.Ask(t.Context())
			kit.Check(t, err == nil && a.Backend == "other-name" && a.From == a.Client,
				"ask %s: %+v, %v", proto, a, err)
		}
		defer func() {
			a, err := c.Ask(t.Context())
			kit.Check(t, err == nil && a.Outcome == after, "ask %s after the server closed: %s, %v, want %s", proto, a.Outcome, err, after)
		}()
	}
	err = echo.Close()
	kit.Check(t, err == nil, "%v", err)
}

func TestLoad(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	echo, err := pod.Echo("", 8080)
	kit.Must(t, err)
	query := Query{Proto: "tcp", To: netip.AddrPortFrom(pod.IPv4, 8080)}
	r := client.Load(t.Context(), LoadConfig{Query: query, Workers: 4, Total: 500}).Wait()
	kit.Check(t, r.Connections == 500 && r.Lost() == 0 && r.Backends["pod"].Count == 500, "counted load: %s", r)
	load := client.Load(t.Context(), LoadConfig{Query: query, Workers: 2})
	until(t, func() bool { return load.Report().Connections > 50 })
	err = echo.Close()
	kit.Check(t, err == nil, "%v", err)
	until(t, func() bool { return load.Report().Outcomes[Refused] > 5 })
	r = load.Stop()
	kit.Check(t, r.Lost() >= 5 && len(r.Errors) == 0 && r.Outcomes[Answered] == r.Backends["pod"].Count,
		"load after the server closed: %s", r)
}

// until polls for a condition that must soon hold.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		kit.Need(t, !time.Now().After(deadline), "did not happen within a minute")
		time.Sleep(time.Millisecond)
	}
}

// TestSCTP checks the outcomes of requests over SCTP, and the client addresses that
// servers see.
func TestSCTP(t *testing.T) {
	if !SCTP() {
		t.Skip("this kernel has no sockets for SCTP")
	}
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	pod, client := lab.Host("pod"), lab.Host("client")
	echo, err := pod.Echo("", 8080)
	kit.Must(t, err)
	rules(t, lab.Node, netip.AddrPortFrom(pod.IPv4, 8080)) // drop port 81
	vip := netip.MustParseAddr("10.96.0.10")
	for name, tc := range map[string]struct {
		to, from netip.AddrPort
		want     Outcome
	}{
		"IPv4":                 {to: netip.AddrPortFrom(pod.IPv4, 8080)},
		"IPv6":                 {to: netip.AddrPortFrom(pod.IPv6, 8080)},
		"port of choice":       {to: netip.AddrPortFrom(pod.IPv4, 8080), from: netip.AddrPortFrom(netip.Addr{}, 4711)},
		"address of choice":    {to: netip.AddrPortFrom(pod.IPv6, 8080), from: netip.AddrPortFrom(client.IPv6, 4712)},
		"nobody listens":       {to: netip.AddrPortFrom(pod.IPv4, 9), want: Refused},
		"nobody listens, IPv6": {to: netip.AddrPortFrom(pod.IPv6, 9), want: Refused},
		"dropped":              {to: netip.AddrPortFrom(pod.IPv4, 81), want: TimedOut},
		"nobody's address":     {to: netip.AddrPortFrom(vip, 82), want: Unreachable},
	} {
		t.Run(name, func(t *testing.T) {
			q := Query{Proto: "sctp", To: tc.to, From: tc.from}
			if tc.want == TimedOut {
				q.Timeout = SilenceTimeout
			}
			a := ask(t, client, q)
			kit.Need(t, a.Outcome == tc.want, "%s, want %s", a.Outcome, tc.want)
			if tc.want != Answered {
				return
			}
			// The node masquerades IPv4.
			seen := client.IPv6
			if tc.to.Addr().Is4() {
				seen = netip.MustParseAddr("10.244.1.1")
			}
			kit.Check(t, a.At == tc.to && a.Client.Addr() == seen && a.From.Addr() == client.Addr(seen),
				"answer %+v", a)
			if p := tc.from.Port(); p != 0 && a.Client.Port() != p {
				t.Errorf("port %d, want %d", a.Client.Port(), p)
			}
		})
	}
	converse(t, client, pod, echo)
}

// converse sends several requests over SCTP, until the server has gone.
func converse(t *testing.T, client, pod *Host, echo *Echo) {
	t.Helper()
	c, a, err := client.Open(t.Context(), Query{Proto: "sctp", To: netip.AddrPortFrom(pod.IPv6, 8080)})
	kit.Need(t, err == nil && a.Outcome == Answered, "open: %+v, %v", a, err)
	defer c.Close()
	for range 3 {
		a, err := c.Ask(t.Context())
		kit.Check(t, err == nil && a.Backend == "pod" && a.From == a.Client, "ask: %+v, %v", a, err)
	}
	err = echo.Close()
	kit.Check(t, err == nil, "%v", err)
	if a, err := c.Ask(t.Context()); err != nil || a.Outcome != Broken {
		t.Errorf("ask after the server closed: %s, %v, want broken", a.Outcome, err)
	}
}
