// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// greeter listens on an address and greets who connects with the name of the address.
func greeter(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	at := l.Addr().(*net.TCPAddr).AddrPort()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go greet(c, at)
		}
	}()
	return at
}

// greet reads until the client ends: a socket that is closed with data in it resets the
// connection.
func greet(c net.Conn, at netip.AddrPort) {
	defer c.Close()
	fmt.Fprintln(c, at)
	if c, ok := c.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, c)
}

func raiseLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// node is a network namespace with a layer for each family in it.
type node struct {
	options  Options
	backends []*Backend
}

// inNode runs fn in the network namespace of a node.
func inNode(t *testing.T, fn func(n *node)) {
	netlab.InNamespace(t, func() {
		if err := raiseLoopback(); err != nil {
			t.Error(err)
			return
		}
		n := &node{options: Options{Cgroup: newCgroup(t), Pins: mountPins(t)}}
		n.open(t)
		t.Cleanup(func() {
			n.cleanUp(t)
			n.close(t)
		})
		fn(n)
	})
}

// open opens the layer like a new process.
func (n *node) open(t *testing.T) {
	t.Helper()
	n.backends = nil
	for _, f := range service.Families {
		n.backends = append(n.backends, New(f, NewDriver(f, n.options), n.options))
	}
}

func (n *node) close(t *testing.T) {
	t.Helper()
	for _, b := range n.backends {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

func (n *node) cleanUp(t *testing.T) {
	t.Helper()
	for _, b := range n.backends {
		if err := b.Cleanup(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// sync does a round for each family. It returns the plans.
func (n *node) sync(t *testing.T, s *service.Snapshot) string {
	t.Helper()
	text := ""
	for _, b := range n.backends {
		p, err := b.Plan(context.Background(), s)
		if err != nil {
			t.Fatal(err)
		}
		o := p.Outcome()
		if !p.Empty() {
			o = p.Apply(context.Background())
		}
		if o.Err != nil || o.Degraded != "" {
			t.Fatalf("%v, %s", o.Err, o.Degraded)
		}
		text += p.Changes().String() + drift(o)
	}
	return text
}

func drift(o reconcile.Outcome) string {
	text := ""
	for _, d := range o.Drift {
		text += "drift: " + d + "\n"
	}
	return text
}

// TestConnect has sockets of all sorts connect through the layer.
func TestConnect(t *testing.T) {
	inNode(t, func(n *node) {
		four, six := greeter(t, "127.0.0.1:0").String(), greeter(t, "[::1]:0").String()
		n.sync(t, snapshot([]string{"10.96.0.10:80", four}, []string{"[fd00:10:96::10]:80", six}))
		inside := startClient(t, n.options.Cgroup, 0)
		for name, c := range map[string]struct {
			call
			want answer
		}{
			"IPv4":                   {call{To: "10.96.0.10:80"}, answer{Greeting: four, Peer: "10.96.0.10:80"}},
			"IPv6":                   {call{To: "[fd00:10:96::10]:80"}, answer{Greeting: six, Peer: "[fd00:10:96::10]:80"}},
			"IPv4-mapped":            {call{To: "[::ffff:10.96.0.10]:80"}, answer{Greeting: four, Peer: "[::ffff:10.96.0.10]:80"}},
			"other port":             {call{To: "10.96.0.10:81"}, answer{Err: "network is unreachable"}},
			"an endpoint itself":     {call{To: four}, answer{Greeting: four, Peer: four}},
			"after a refusal":        {call{To: "127.0.0.1:1", Then: "10.96.0.10:80", Family: unix.AF_INET}, answer{Greeting: four, Peer: "10.96.0.10:80"}},
			"bound to an address":    {call{To: "10.96.0.10:80", Bind: "127.0.0.1:0"}, answer{Err: "network is unreachable"}},
			"bound to any address":   {call{To: "10.96.0.10:80", Bind: "0.0.0.0:0"}, answer{Err: "network is unreachable"}},
			"IPv6 bound":             {call{To: "[fd00:10:96::10]:80", Bind: "[::1]:0"}, answer{Err: "network is unreachable"}},
			"mapped, not a frontend": {call{To: "[::ffff:10.96.0.11]:80"}, answer{Err: "network is unreachable"}},
		} {
			t.Run(name, func(t *testing.T) {
				if got := inside.call(t, c.call); got != c.want {
					t.Errorf("%+v, want %+v", got, c.want)
				}
			})
		}
	})
}

// TestLayerOutlivesItsProcess covers stop, start, and the removal of the layer.
func TestLayerOutlivesItsProcess(t *testing.T) {
	inNode(t, func(n *node) {
		four, six := greeter(t, "127.0.0.1:0").String(), greeter(t, "[::1]:0").String()
		s := snapshot([]string{"10.96.0.10:80", four}, []string{"[fd00:10:96::10]:80", six})
		n.sync(t, s)
		c := startClient(t, n.options.Cgroup, 0)
		connects := func(situation string, want bool) {
			t.Helper()
			for to, endpoint := range map[string]string{"10.96.0.10:80": four, "[fd00:10:96::10]:80": six} {
				if a := c.call(t, call{To: to}); (a.Greeting == endpoint) != want {
					t.Errorf("%s: %+v", situation, a)
				}
			}
		}
		n.close(t)
		connects("after a stop", true)
		n.open(t)
		if plan := n.sync(t, s); plan != "" {
			t.Errorf("a new process changed something:\n%s", plan)
		}
		connects("after a start", true)
		moved := greeter(t, "127.0.0.1:0").String()
		n.close(t)
		n.open(t)
		n.sync(t, snapshot([]string{"10.96.0.10:80", moved}))
		if a := c.call(t, call{To: "10.96.0.10:80"}); a.Greeting != moved {
			t.Errorf("after a change and a start: %+v", a)
		}
		n.sync(t, s)
		n.cleanUp(t)
		connects("after the removal", false)
		if _, err := os.Stat(filepath.Join(n.options.Pins, Name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the removal its folder is there (%v)", err)
		}
		n.cleanUp(t) // nothing is there
		n.sync(t, s)
		connects("made anew", true)
	})
}

// TestRemovedWithoutPins removes the layer from a container in which its pins are not
// mounted. The layers of other proxies and other namespaces stay.
func TestRemovedWithoutPins(t *testing.T) {
	inNode(t, func(n *node) {
		at := greeter(t, "127.0.0.1:0").String()
		n.sync(t, snapshot([]string{"10.96.0.10:80", at}))
		c := startClient(t, n.options.Cgroup, 0)
		remove := func(o Options) string {
			l := Leftovers{Family: service.IPv4, Options: o}
			found, err := l.Find(t.Context())
			if err == nil {
				err = l.Remove(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
			return found
		}
		elsewhere := n.options
		elsewhere.Pins = t.TempDir()
		for _, name := range []string{NameOf("other"), Name} {
			elsewhere.Name = name
			found := remove(elsewhere)
			a := c.call(t, call{To: "10.96.0.10:80"})
			if own := name == Name; (found != "") != own || (a.Greeting == at) == own {
				t.Errorf("of %s: found %q, then %+v", name, found, a)
			}
		}
		if found := remove(elsewhere); found != "" {
			t.Errorf("after the removal there is %q", found)
		}
	})
}

// TestGrowth has tables replaced while sockets that they gave an endpoint are open.
func TestGrowth(t *testing.T) {
	inNode(t, func(n *node) {
		at := greeter(t, "127.0.0.1:0").String()
		first := []string{"10.96.0.10:80", at}
		n.sync(t, snapshot(first))
		before, err := n.backends[0].driver.Taken()
		if err != nil {
			t.Fatal(err)
		}
		c := startClient(t, n.options.Cgroup, 0)
		c.call(t, call{To: "10.96.0.10:80"})
		many := [][]string{first}
		for i := range 3000 {
			many = append(many, []string{fmt.Sprintf("10.97.%d.%d:80", i>>8, i&255), "127.0.0.1:1", at})
		}
		n.sync(t, snapshot(many...))
		if a := c.call(t, call{To: "10.97.11.183:80"}); a.Greeting != at && a.Err != "connection refused" {
			t.Errorf("the last frontend: %+v", a)
		}
		if a := c.call(t, call{To: "10.96.0.10:80"}); a.Greeting != at || a.Peer != "10.96.0.10:80" {
			t.Errorf("the first frontend: %+v", a)
		}
		if after, err := n.backends[0].driver.Taken(); err != nil || after.Node-before.Node != 3 {
			t.Errorf("%d connections were taken (%v), want 3", after.Node-before.Node, err)
		}
		if k := n.backends[0].driver.(*kernel); len(k.mapped) != 2 {
			t.Errorf("%d tables are mapped", len(k.mapped))
		}
	})
}

// TestDetachedProgramsAreFound has somebody detach a program, replace one, and remove the
// pins.
func TestDetachedProgramsAreFound(t *testing.T) {
	inNode(t, func(n *node) {
		at := greeter(t, "127.0.0.1:0").String()
		s := snapshot([]string{"10.96.0.10:80", at})
		n.sync(t, s)
		c := startClient(t, n.options.Cgroup, 0)
		k := n.backends[0].driver.(*kernel)
		for name, tamper := range map[string]func() error{
			"detached": func() error { return k.links["connect4"].Detach() },
			"unpinned": func() error { return os.Remove(filepath.Join(k.dir, "connect4")) },
			"all pins": func() error { return os.RemoveAll(k.dir) },
		} {
			if err := tamper(); err != nil {
				t.Fatal(err)
			}
			if k.Attached() == nil {
				t.Errorf("%s: not noticed", name)
			}
			if text := n.sync(t, s); !strings.Contains(text, "drift: ") {
				t.Errorf("%s: round:\n%s", name, text)
			}
			if a := c.call(t, call{To: "10.96.0.10:80"}); a.Greeting != at {
				t.Errorf("%s: after the repair: %+v", name, a)
			}
			if err := k.Attached(); err != nil {
				t.Errorf("%s: after the repair: %v", name, err)
			}
		}
	})
}
