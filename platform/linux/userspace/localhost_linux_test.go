// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// localNode has the listeners of NodePorts on a loopback address of the test.
type localNode struct {
	*Localhost
	*testing.T
	node service.Node
}

func newLocalNode(t *testing.T) *localNode {
	n := &localNode{T: t, node: service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}
	limits := NewLimits(4096)
	n.Localhost = NewLocalhostWith(service.IPv4, LocalhostParts{Network: &node{}, Limits: func() (*Limits, error) { return limits, nil }})
	t.Cleanup(func() { _ = n.Localhost.Close() })
	return n
}

// apply runs a sync for ports and returns its error.
func (n *localNode) apply(ports ...*service.Port) error {
	n.Helper()
	at := n.node
	want := service.New(1, &at, ports)
	p, err := n.Plan(n.Context(), want)
	if err != nil {
		n.Fatal(err)
	}
	if p.Empty() {
		return nil
	}
	err = p.Apply(n.Context()).Err
	if again, planErr := n.Plan(n.Context(), want); err == nil && (planErr != nil || !again.Empty()) {
		n.Errorf("after a round without an error there is still this to do, %v:\n%s", planErr, generate.Text(again))
	}
	return err
}

// get returns which server answers at a port, "" if it refuses.
func (n *localNode) get(port uint16) string {
	n.Helper()
	c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(here, port)))
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

// free returns a port without a listener.
func free(t *testing.T) uint16 {
	l, at := listenAt(t)
	_ = l.Close()
	return at.Port()
}

// published returns a Service port with a NodePort and endpoints.
func published(name string, number uint16, proto service.Protocol, at ...netip.AddrPort) *service.Port {
	p := port(name, proto, at...)
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.NodePort, Port: number})
	return p
}

func TestLocalhostFollowsTheSnapshot(t *testing.T) {
	n, a, b, number := newLocalNode(t), newEcho(t), newEcho(t), free(t)
	for _, step := range []struct {
		what  string
		asked string
		ports []*service.Port
		want  string
	}{
		{"a NodePort", "127.0.0.0/8", []*service.Port{published("web", number, service.TCP, a.at)}, a.at.String()},
		{"another endpoint", "127.0.0.0/8", []*service.Port{published("web", number, service.TCP, b.at)}, b.at.String()},
		{"no endpoint", "127.0.0.0/8", []*service.Port{published("web", number, service.TCP)}, ""},
		{"the NodePort passes to another Service", "127.0.0.1/32", []*service.Port{published("new", number, service.TCP, a.at)}, a.at.String()},
		{"and back", "127.0.0.1/32", []*service.Port{published("web", number, service.TCP, b.at)}, b.at.String()},
		{"not asked for", "192.0.2.0/24", []*service.Port{published("web", number, service.TCP, b.at)}, ""},
		{"a prefix that holds everything", "0.0.0.0/0", []*service.Port{published("web", number, service.TCP, b.at)}, ""},
		{"another loopback address", "127.0.0.2/32", []*service.Port{published("web", number, service.TCP, b.at)}, ""},
		{"asked for again", "127.0.0.0/8", []*service.Port{published("web", number, service.TCP, b.at)}, b.at.String()},
		{"no NodePort", "127.0.0.0/8", []*service.Port{port("web", service.TCP, b.at)}, ""},
		{"gone", "127.0.0.0/8", nil, ""},
	} {
		n.node.NodePorts = []netip.Prefix{netip.MustParsePrefix(step.asked)}
		err := n.apply(step.ports...)
		kit.Check(t, err == nil, "%s: %v", step.what, err)
		got := n.get(number)
		kit.Check(t, got == step.want, "%s: %q answers, want %q", step.what, got, step.want)
		if got := n.Listeners() == 1; got != (step.want != "") {
			t.Errorf("%s: %d listeners", step.what, n.Listeners())
		}
	}
	kit.Check(t, len(n.targets)+len(n.listeners)+len(n.retry) <= 0,
		"%d targets, %d listeners and %d failures are left", len(n.targets), len(n.listeners), len(n.retry))
}

// TestLocalhostLeavesPortsOfOthers checks that another local process keeps a port that
// it listens on, and that the NodePort answers from the next sync on after that process
// has closed it.
func TestLocalhostLeavesPortsOfOthers(t *testing.T) {
	n, a := newLocalNode(t), newEcho(t)
	other, at := listenAt(t)
	number := free(t)
	ports := []*service.Port{published("held", at.Port(), service.TCP, a.at), published("web", number, service.TCP, a.at)}
	for range 2 {
		err := n.apply(ports...)
		failed := reconcile.PortErrors(err)
		kit.Check(t, len(failed) == 1 && failed[0].Name.Name == "held" && reconcile.InForce(failed[0].Err) && strings.Contains(err.Error(), "another program"),
			"%v, want one port that lacks something", err)
		got := n.get(number)
		kit.Check(t, got == a.at.String(), "%q answers for the other Service", got)
	}
	if n.Failures() != 2 || n.Listeners() != 1 {
		t.Errorf("%d failures, %d listeners; want 2 and 1", n.Failures(), n.Listeners())
	}
	_ = other.Close()
	if err := n.apply(ports...); err != nil {
		t.Error(err)
	}
	got := n.get(at.Port())
	kit.Check(t, got == a.at.String(), "%q answers, want %s", got, a.at)
}

func TestLocalhostWithoutFiles(t *testing.T) {
	n, a := newLocalNode(t), newEcho(t)
	broken := errors.New("no limit is known")
	n.parts.Limits = func() (*Limits, error) { return nil, broken }
	err := n.apply(published("web", free(t), service.TCP, a.at))
	kit.Check(t, errors.Is(err, broken), "%v, want %v", err, broken)
}

// TestLocalhostNotesSCTP checks that SCTP is not relayed, and that this is a note on the
// port, not a failure.
func TestLocalhostNotesSCTP(t *testing.T) {
	n, a := newLocalNode(t), newEcho(t)
	sctp := published("web", 30000, service.SCTP, a.at)
	at := n.node
	notes := func(ports ...*service.Port) reconcile.Notes {
		p, err := n.Plan(t.Context(), service.New(1, &at, ports))
		kit.Need(t, err == nil && p.Empty(), "%v, %v; want an empty plan", p, err)
		return p.Outcome().Notes
	}
	got := notes(sctp)[sctp.Name]
	kit.Check(t, len(got) == 1 && strings.Contains(got[0].Text, "127.0.0.1"), "notes %v", got)
	if got := notes(); len(got) != 0 {
		t.Errorf("notes %v of a port that left", got)
	}
}

// TestBoundAddress leaves an address of the node alone, and says so if it is none.
func TestBoundAddress(t *testing.T) {
	o := Options{Listen: [2]netip.Addr{service.IPv4: netip.MustParseAddr("127.0.0.1")}}
	a := o.addr(service.IPv4)
	kit.Check(t, a == Addrs[service.IPv4] && o.rules().RelayPorts[service.IPv4].Last == 0, "without a range of ports listeners are at %s", a)
	o.Ports = Range{4000, 4999}
	if o.addr(service.IPv4) != o.Listen[service.IPv4] || o.addr(service.IPv6) != Addrs[service.IPv6] || o.rules().RelayPorts[service.IPv6].Last != 0 {
		t.Errorf("listeners are at %s and %s", o.addr(service.IPv4), o.addr(service.IPv6))
	}
	for text, want := range map[string]bool{"127.0.0.1": true, "203.0.113.77": false} {
		o.Listen[service.IPv4] = netip.MustParseAddr(text)
		a := addressOf(service.IPv4, o)
		there, err := a.Has()
		kit.Check(t, err == nil && there == want, "%s: %t, %v", text, there, err)
		err = a.Add()
		kit.Check(t, err != nil && strings.Contains(err.Error(), "no interface has it"), "Add = %v", err)
		err = a.Remove()
		kit.Check(t, err == nil, "Remove: %v", err)
	}
}

// TestBoundPassesOver has datagrams to endpoints come from no port whose rules take
// them for a listener's, as far as the system offers others.
func TestBoundPassesOver(t *testing.T) {
	_, to := listenAt(t)
	dial := func() (*net.UDPConn, error) { return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) }
	one, err := dial()
	kit.Must(t, err)
	_ = one.Close()
	odd := one.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	offers := []uint16{odd, odd, odd + 1}
	for _, r := range []Range{{odd, odd}, {1, 65535}, {}} {
		n := 0
		c, err := r.passOver(func() (*net.UDPConn, error) {
			n++
			at := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 1, byte(n)}), offers[min(n, len(offers))-1]))
			return net.DialUDP("udp", at, net.UDPAddrFromAddrPort(to))
		})
		kit.Must(t, err)
		want := map[uint16]int{odd: 3, 1: mostTaken + 1, 0: 1}[r.First]
		kit.Check(t, n == want, "%v: %d ports, want %d", r, n, want)
		_ = c.Close()
	}
}

// TestRaiseFileLimit checks that the limit is in force, and not lower than before.
func TestRaiseFileLimit(t *testing.T) {
	var before, after unix.Rlimit
	kit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	n, err := RaiseFileLimit()
	kit.Must(t, err)
	kit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &after))
	kit.Check(t, uint64(n) == after.Cur && after.Cur >= before.Max,
		"raised to %d; the limit was %+v and is %+v", n, before, after)
}

// reach returns which server answers at a listener.
func reach(t *testing.T, at netip.AddrPort) string {
	t.Helper()
	c, err := net.Dial("tcp", at.String())
	kit.Must(t, err)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	return answers(t, c)
}

// TestListenerThatLeavesServes checks that a listener serves clients while rules
// redirect to it and connections are arriving, after the policy has changed from Local
// and while the tables cannot be changed yet.
func TestListenerThatLeavesServes(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{}, 4096)
	n.relay.arrivalGrace = time.Hour
	local, all := port("web", service.TCP, e.at), port("web", service.TCP, e.at)
	local.Internal, local.Local = service.PolicyLocal, local.Cluster
	kit.Must(t, n.apply(t, local))
	l := n.listeners[key{local.Name, service.PolicyLocal}]
	at := netip.AddrPortFrom(here, l.port())
	t.Cleanup(l.close)
	n.tables.err = errors.New("somebody has the lock")
	err := n.apply(t, all)
	kit.Need(t, err != nil, "a round without the tables succeeded")
	got := reach(t, at)
	kit.Check(t, got == e.at.String(), "with rules that lead there, %q answers", got)
	n.tables.err = nil
	kit.Must(t, n.apply(t, all))
	kit.Check(t, n.listeners[key{local.Name, service.PolicyLocal}] == nil, "the listener for policy Local stays")
	if got := reach(t, at); got != e.at.String() {
		t.Errorf("on the way there, %q answers", got)
	}
}

// TestServiceThatLeavesServes checks the same for a deleted Service, over UDP.
func TestServiceThatLeavesServes(t *testing.T) {
	e := newEcho(t)
	n := newNode(t, Options{}, 4096)
	n.relay.arrivalGrace = time.Hour
	dns := port("dns", service.UDP, e.at)
	kit.Must(t, n.apply(t, dns))
	l := n.listeners[key{dns.Name, service.PolicyCluster}]
	t.Cleanup(l.close)
	c, err := net.Dial("udp", n.at(t, dns).String())
	kit.Must(t, err)
	defer c.Close()
	kit.Must(t, n.apply(t))
	_ = c.SetDeadline(time.Now().Add(15 * time.Second))
	b := make([]byte, 100)
	_, _ = io.WriteString(c, "x")
	if m, err := c.Read(b); err != nil || string(b[:m]) != e.at.String()+" x" {
		t.Errorf("on the way there: %q, %v", b[:m], err)
	}
}

// localWeb returns a Service port with an internal policy, an endpoint on another node,
// and perhaps one on this node.
func localWeb(proto service.Protocol, policy service.Policy, there netip.AddrPort, local ...service.Endpoint) *service.Port {
	p := port("web", proto, there)
	p.Internal, p.Cluster = policy, append(p.Cluster, local...)
	slices.SortFunc(p.Cluster, func(a, b service.Endpoint) int { return a.Addr.Compare(b.Addr) })
	if policy == service.PolicyLocal { // the Tracker fills it for this policy only
		p.Local = local
	}
	return p
}

// asks returns who answers a client at a listener, "" if nobody does.
func asks(t *testing.T, proto service.Protocol, at netip.AddrPort) string {
	t.Helper()
	if proto == service.UDP {
		return callerOf(t, at).ask(t, "x", 50*time.Millisecond)
	}
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(long))
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

// localStep is a state of a Service port. The zero value is a deleted Service.
type localStep struct {
	policy service.Policy
	here   bool // an endpoint is on this node
}

// localSteps has a Service with an endpoint on this node now and then, and one on another node.
type localSteps struct {
	*node
	proto       service.Protocol
	mine, other *echo
	old         []caller // UDP clients from before
}

func (l *localSteps) ports(s localStep) []*service.Port {
	switch {
	case s == localStep{}:
		return nil
	case s.here:
		return []*service.Port{localWeb(l.proto, s.policy, l.other.at, service.Endpoint{Addr: l.mine.at, Local: true})}
	}
	return []*service.Port{localWeb(l.proto, s.policy, l.other.at)}
}

// check asks at a listener, as clients whose policy is Local.
func (l *localSteps) check(t *testing.T, at netip.AddrPort, s localStep) {
	t.Helper()
	want := ""
	if s.here {
		want = l.mine.at.String()
	}
	for range 4 {
		got := asks(t, l.proto, at)
		kit.Check(t, got == want, "%q answers, want %q", got, want)
	}
	for _, c := range l.old {
		got := c.ask(t, "x", 50*time.Millisecond)
		kit.Check(t, got == want, "%q answers a client of before, want %q", got, want)
	}
}

// TestNoOtherNodeForPolicyLocal checks that no client of policy Local reaches an endpoint of
// another node while the tables cannot be changed, whatever changes meanwhile and whichever
// listener the rules lead to.
func TestNoOtherNodeForPolicyLocal(t *testing.T) {
	const all, local = service.PolicyCluster, service.PolicyLocal
	for name, steps := range map[string][]localStep{
		"the last one leaves":                   {{local, true}, {local, false}},
		"it leaves, comes and leaves":           {{local, true}, {local, false}, {local, true}, {local, false}},
		"policy Cluster for a while":            {{local, true}, {all, true}, {local, false}},
		"policy Local begins":                   {{all, true}, {local, true}, {local, false}},
		"policy Local begins without endpoints": {{all, true}, {local, false}},
		"the Service is deleted for a while":    {{local, true}, {}, {local, false}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, proto := range []service.Protocol{service.TCP, service.UDP} {
				t.Run(proto.String(), func(t *testing.T) { checkLocalSteps(t, proto, steps) })
			}
		})
	}
}

func checkLocalSteps(t *testing.T, proto service.Protocol, steps []localStep) {
	l := &localSteps{node: newNode(t, Options{UDPIdle: time.Minute}, 4096), proto: proto, mine: newEcho(t), other: newEcho(t)}
	first := l.ports(steps[0])
	kit.Must(t, l.apply(t, first...))
	at := netip.AddrPortFrom(here, l.listeners[key{first[0].Name, steps[0].policy}].port())
	for range 4 {
		if proto == service.UDP {
			c := callerOf(t, at)
			c.ask(t, "x", long)
			l.old = append(l.old, c)
		}
	}
	l.tables.err = errors.New("somebody has the lock")
	for _, s := range steps[1:] {
		err := l.apply(t, l.ports(s)...)
		kit.Need(t, err != nil, "a round without the tables succeeded")
		if s.policy == service.PolicyLocal {
			l.check(t, at, s)
		}
	}
}
