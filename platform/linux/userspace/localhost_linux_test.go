// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"bufio"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
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
		if err := n.apply(step.ports...); err != nil {
			t.Errorf("%s: %v", step.what, err)
		}
		if got := n.get(number); got != step.want {
			t.Errorf("%s: %q answers, want %q", step.what, got, step.want)
		}
		if got := n.Listeners() == 1; got != (step.want != "") {
			t.Errorf("%s: %d listeners", step.what, n.Listeners())
		}
	}
	if len(n.targets)+len(n.listeners)+len(n.retry) > 0 {
		t.Errorf("%d targets, %d listeners and %d failures are left", len(n.targets), len(n.listeners), len(n.retry))
	}
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
		if len(failed) != 1 || failed[0].Name.Name != "held" || !reconcile.InForce(failed[0].Err) || !strings.Contains(err.Error(), "another program") {
			t.Errorf("%v, want one port that lacks something", err)
		}
		if got := n.get(number); got != a.at.String() {
			t.Errorf("%q answers for the other Service", got)
		}
	}
	if n.Failures() != 2 || n.Listeners() != 1 {
		t.Errorf("%d failures, %d listeners; want 2 and 1", n.Failures(), n.Listeners())
	}
	_ = other.Close()
	if err := n.apply(ports...); err != nil {
		t.Error(err)
	}
	if got := n.get(at.Port()); got != a.at.String() {
		t.Errorf("%q answers, want %s", got, a.at)
	}
}

func TestLocalhostWithoutFiles(t *testing.T) {
	n, a := newLocalNode(t), newEcho(t)
	broken := errors.New("no limit is known")
	n.parts.Limits = func() (*Limits, error) { return nil, broken }
	if err := n.apply(published("web", free(t), service.TCP, a.at)); !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
}

// TestLocalhostNotesSCTP checks that SCTP is not relayed, and that this is a note on the
// port, not a failure.
func TestLocalhostNotesSCTP(t *testing.T) {
	n, a := newLocalNode(t), newEcho(t)
	sctp := published("web", 30000, service.SCTP, a.at)
	at := n.node
	notes := func(ports ...*service.Port) reconcile.Notes {
		p, err := n.Plan(t.Context(), service.New(1, &at, ports))
		if err != nil || !p.Empty() {
			t.Fatalf("%v, %v; want an empty plan", p, err)
		}
		return p.Outcome().Notes
	}
	if got := notes(sctp)[sctp.Name]; len(got) != 1 || !strings.Contains(got[0].Text, "127.0.0.1") {
		t.Errorf("notes %v", got)
	}
	if got := notes(); len(got) != 0 {
		t.Errorf("notes %v of a port that left", got)
	}
}
