// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// greeter listens on an address and greets who connects with the name of the address.
func greeter(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	kit.Must(t, err)
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
		err := b.Close()
		kit.Check(t, err == nil, "%v", err)
	}
}

func (n *node) cleanUp(t *testing.T) {
	t.Helper()
	for _, b := range n.backends {
		err := b.Cleanup(context.Background())
		kit.Check(t, err == nil, "%v", err)
	}
}

// sync does a round for each family. It returns the plans.
func (n *node) sync(t *testing.T, s *service.Snapshot) string {
	t.Helper()
	text := ""
	for _, b := range n.backends {
		p, err := b.Plan(context.Background(), s)
		kit.Must(t, err)
		o := p.Outcome()
		if !p.Empty() {
			o = p.Apply(context.Background())
		}
		kit.Need(t, o.Err == nil && o.Degraded == "", "%v, %s", o.Err, o.Degraded)
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
				got := inside.call(t, c.call)
				kit.Check(t, got == c.want, "%+v, want %+v", got, c.want)
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
				a := c.call(t, call{To: to})
				kit.Check(t, (a.Greeting == endpoint) == want, "%s: %+v", situation, a)
			}
		}
		n.close(t)
		connects("after a stop", true)
		n.open(t)
		plan := n.sync(t, s)
		kit.Check(t, plan == "", "a new process changed something:\n%s", plan)
		connects("after a start", true)
		moved := greeter(t, "127.0.0.1:0").String()
		n.close(t)
		n.open(t)
		n.sync(t, snapshot([]string{"10.96.0.10:80", moved}))
		a := c.call(t, call{To: "10.96.0.10:80"})
		kit.Check(t, a.Greeting == moved, "after a change and a start: %+v", a)
		n.sync(t, s)
		n.cleanUp(t)
		connects("after the removal", false)
		_, err := os.Stat(filepath.Join(n.options.Pins, Name))
		kit.Check(t, errors.Is(err, os.ErrNotExist), "after the removal its folder is there (%v)", err)
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
			kit.Check(t, err == nil, "%v", err)
			return found
		}
		elsewhere := n.options
		elsewhere.Pins = t.TempDir()
		for _, name := range []string{NameOf("other"), Name} {
			elsewhere.Name = name
			found := remove(elsewhere)
			a := c.call(t, call{To: "10.96.0.10:80"})
			own := name == Name
			kit.Check(t, (found != "") == own && (a.Greeting == at) != own, "of %s: found %q, then %+v", name, found, a)
		}
		kit.Equal(t, remove(elsewhere), "", "after the removal there")
	})
}

// TestGrowth has tables replaced while sockets that they gave an endpoint are open.
func TestGrowth(t *testing.T) {
	inNode(t, func(n *node) {
		at := greeter(t, "127.0.0.1:0").String()
		first := []string{"10.96.0.10:80", at}
		n.sync(t, snapshot(first))
		before, err := n.backends[0].driver.Taken()
		kit.Must(t, err)
		c := startClient(t, n.options.Cgroup, 0)
		c.call(t, call{To: "10.96.0.10:80"})
		many := [][]string{first}
		for i := range 3000 {
			many = append(many, []string{fmt.Sprintf("10.97.%d.%d:80", i>>8, i&255), "127.0.0.1:1", at})
		}
		n.sync(t, snapshot(many...))
		a := c.call(t, call{To: "10.97.11.183:80"})
		kit.Check(t, a.Greeting == at || a.Err == "connection refused", "the last frontend: %+v", a)
		if a := c.call(t, call{To: "10.96.0.10:80"}); a.Greeting != at || a.Peer != "10.96.0.10:80" {
			t.Errorf("the first frontend: %+v", a)
		}
		if after, err := n.backends[0].driver.Taken(); err != nil || after.Node-before.Node != 3 {
			t.Errorf("%d connections were taken (%v), want 3", after.Node-before.Node, err)
		}
		k := n.backends[0].driver.(*kernel)
		kit.Check(t, len(k.mapped) == 2, "%d tables are mapped", len(k.mapped))
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
			kit.Must(t, tamper())
			kit.Check(t, k.Attached() != nil, "%s: not noticed", name)
			text := n.sync(t, s)
			kit.Check(t, strings.Contains(text, "drift: "), "%s: round:\n%s", name, text)
			a := c.call(t, call{To: "10.96.0.10:80"})
			kit.Check(t, a.Greeting == at, "%s: after the repair: %+v", name, a)
			err := k.Attached()
			kit.Check(t, err == nil, "%s: after the repair: %v", name, err)
		}
	})
}

const someService = "10.96.0.10:80"

// mountOver mounts a BPF file system over the one with the pins.
func (n *node) mountOver(t *testing.T) (unmount func()) {
	t.Helper()
	kit.Must(t, unix.Mount("bpf", n.options.Pins, "bpf", 0, ""))
	mounted := true
	unmount = func() {
		if mounted {
			kit.Must(t, unix.Unmount(n.options.Pins, 0))
		}
		mounted = false
	}
	t.Cleanup(func() {
		n.cleanUp(t) // what is pinned there
		unmount()
	})
	return unmount
}

// leadsTo requires that a client gets an endpoint, from one program at each place.
func (n *node) leadsTo(t *testing.T, situation, endpoint string) {
	t.Helper()
	a := startClient(t, n.options.Cgroup, 0).call(t, call{To: someService})
	kit.Check(t, a.Greeting == endpoint && a.Peer == someService, "%s: %+v, want %s", situation, a, endpoint)
	got := n.attached(t)
	kit.Check(t, got == len(attachments[service.IPv4])+len(attachments[service.IPv6]), "%s: %d programs are attached", situation, got)
}

// attached counts the programs at all places of the layer.
func (n *node) attached(t *testing.T) (sum int) {
	t.Helper()
	dir, err := os.Open(n.options.Cgroup)
	kit.Must(t, err)
	defer dir.Close()
	places := map[ebpf.AttachType]bool{} // IPv4-mapped addresses share some with IPv6
	for _, all := range attachments {
		for _, a := range all {
			places[a.attach] = true
		}
	}
	for at := range places {
		there, err := programsAt(int(dir.Fd()), at, 0)
		kit.Must(t, err)
		sum += len(there.ids)
	}
	return sum
}

// TestSecondBPFFileSystem mounts a BPF file system over the one that has the pins, while the
// proxy runs and while it does not. The lists that clients meet are those of the last round.
func TestSecondBPFFileSystem(t *testing.T) {
	inNode(t, func(n *node) {
		var greeters []string
		next := func() (string, *service.Snapshot) {
			greeters = append(greeters, greeter(t, "127.0.0.1:0").String())
			at := greeters[len(greeters)-1]
			return at, snapshot([]string{someService, at})
		}
		at, s := next()
		n.sync(t, s)
		n.leadsTo(t, "before", at)

		unmount := n.mountOver(t)
		at, s = next()
		without(t, []int{unix.CAP_SYS_ADMIN}, func() { // as in a pod: it cannot detach what it does not have
			n.sync(t, s)                   // the programs are those of before
			for _, b := range n.backends { // until the last one has pinned its programs, they are not known
				plan, o := round(t, b, s)
				kit.Check(t, strings.Contains(plan, "the pin of program") && o.Err == nil, "the mount is not found: %s, %v", plan, o.Err)
			}
			n.sync(t, s)
		})
		n.leadsTo(t, "mounted while the proxy runs", at)
		unmount()
		at, s = next()
		n.sync(t, s)
		n.sync(t, s)
		n.leadsTo(t, "unmounted again", at)

		n.close(t)
		n.mountOver(t)
		n.open(t)
		at, s = next()
		n.sync(t, s)
		n.leadsTo(t, "mounted between two processes", at)
	})
}

// TestSecondBPFFileSystemWithoutRights does so for processes that may not look for programs.
// They say what may be there, and what has the rights mends it.
func TestSecondBPFFileSystemWithoutRights(t *testing.T) {
	inNode(t, func(n *node) {
		n.sync(t, snapshot([]string{someService, greeter(t, "127.0.0.1:0").String()}))
		n.close(t)
		n.mountOver(t)
		at := greeter(t, "127.0.0.1:0").String()
		s := snapshot([]string{someService, at})
		unprivileged := func(situation, want string) {
			t.Helper()
			n.open(t)
			for _, b := range n.backends {
				var o reconcile.Outcome
				without(t, []int{unix.CAP_SYS_ADMIN}, func() { _, o = round(t, b, s) })
				kit.Check(t, o.Err == nil && strings.Contains(o.Degraded, want),
					"%s: %v, %q, want %q", situation, o.Err, o.Degraded, want)
				without(t, []int{unix.CAP_SYS_ADMIN}, func() { _, o = round(t, b, s) })
				kit.Check(t, strings.Contains(o.Degraded, want), "%s, later: %q, want %q", situation, o.Degraded, want)
			}
			n.close(t)
		}
		unprivileged("on", "may not be what decides: programs with the ids ")
		seen, err := New(service.IPv4, NewDriver(service.IPv4, n.options), n.options).Inspect()
		kit.Check(t, err == nil && strings.Contains(seen.Others, "an earlier process"),
			"%+v, %v: programs of an earlier process are not seen", seen, err)
		n.options.Off = true
		unprivileged("off", "which is off, may be in force")
		n.options.Off = false
		n.open(t)
		n.sync(t, s)
		n.leadsTo(t, "with the rights", at)
		n.close(t)
		hidden := n.options
		n.options.Pins, n.options.Off = t.TempDir(), true
		unprivileged("off, without pins", "which is off, may be in force")
		n.options = hidden
		n.open(t)
	})
}

// TestEvict has an init container remove what the proxy itself may not see.
func TestEvict(t *testing.T) {
	inNode(t, func(n *node) {
		n.sync(t, snapshot([]string{someService, greeter(t, "127.0.0.1:0").String()}))
		n.close(t)
		n.mountOver(t)
		n.open(t)
		at := greeter(t, "127.0.0.1:0").String()
		for _, b := range n.backends {
			without(t, []int{unix.CAP_SYS_ADMIN}, func() { round(t, b, snapshot([]string{someService, at})) })
		}
		hidden := n.options
		hidden.Pins = t.TempDir()
		before := n.attached(t)
		for _, f := range service.Families {
			kit.Must(t, Leftovers{Family: f, Options: hidden}.Evict())
		}
		got := n.attached(t)
		kit.Check(t, got == before, "where no pins are to be seen, %d of %d programs are left", got, before)
		for _, f := range service.Families {
			kit.Must(t, Leftovers{Family: f, Options: n.options}.Evict())
		}
		n.leadsTo(t, "after Evict", at)
	})
}

// TestOffWithHiddenPins switches the layer off where its pins are hidden.
func TestOffWithHiddenPins(t *testing.T) {
	inNode(t, func(n *node) {
		s := snapshot([]string{someService, greeter(t, "127.0.0.1:0").String()})
		n.sync(t, s)
		n.close(t)
		n.mountOver(t)
		n.options.Off = true
		n.open(t)
		n.sync(t, s)
		got := n.attached(t)
		kit.Check(t, got == 0, "%d programs are left", got)
		n.options.Off = false
	})
}

// TestOtherVersionIsReplaced has a process find tables of a program that it does not know.
func TestOtherVersionIsReplaced(t *testing.T) {
	inNode(t, func(n *node) {
		n.sync(t, snapshot([]string{someService, greeter(t, "127.0.0.1:0").String()}))
		n.close(t)
		scopes, err := filepath.Glob(filepath.Join(n.options.Pins, Name, "*", "*", "*", "scope"))
		kit.Must(t, err)
		for _, path := range scopes {
			m, err := ebpf.LoadPinnedMap(path, nil)
			kit.Must(t, err)
			var s scope
			kit.Must(t, m.Lookup(uint32(0), &s))
			s.Program++
			kit.Must(t, m.Put(uint32(0), &s))
			m.Close()
		}
		n.open(t)
		at := greeter(t, "127.0.0.1:0").String()
		plan := n.sync(t, snapshot([]string{someService, at}))
		kit.Check(t, strings.Count(plan, "make tables") == len(scopes) && len(scopes) == 2, "tables of another program are adopted: %s", plan)
		n.leadsTo(t, "after the other version", at)
	})
}

// TestExclusiveProgram has somebody attach a program that lets no other be attached. What is
// said names it.
func TestExclusiveProgram(t *testing.T) {
	inNode(t, func(n *node) {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "other", Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect,
			License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
		kit.Must(t, err)
		defer p.Close()
		info, err := p.Info()
		kit.Must(t, err)
		id, _ := info.ID()
		s := snapshot([]string{someService, "127.0.0.1:1"})
		for flags, alone := range map[uint32]bool{0: true, unix.BPF_F_ALLOW_OVERRIDE: true, unix.BPF_F_ALLOW_MULTI: false} {
			dir, err := os.Open(n.options.Cgroup)
			kit.Must(t, err)
			kit.Must(t, link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: ebpf.AttachCGroupInet4Connect, Flags: flags}))
			n.open(t)
			_, o := round(t, n.backends[service.IPv4], s)
			got := strings.Contains(o.Degraded, "program "+strconv.Itoa(int(id))+" of somebody is attached there exclusively")
			kit.Check(t, got == alone && o.Err == nil, "with flags %d: %v, %q", flags, o.Err, o.Degraded)
			kit.Must(t, link.RawDetachProgram(link.RawDetachProgramOptions{Target: int(dir.Fd()), Program: p, Attach: ebpf.AttachCGroupInet4Connect}))
			dir.Close()
			n.cleanUp(t)
		}
	})
}

// TestNamesOfProxies has the names that a label may have become folders of a BPF file system.
func TestNamesOfProxies(t *testing.T) {
	pins := mountPins(t)
	for proxy, want := range map[string]string{"": Name, "edge": Name + "-edge", "edge.example.com": Name + "-edge+example+com", "Edge_1": Name + "-Edge_1"} {
		kit.Equal(t, NameOf(proxy), want, "%q", proxy)
		kit.Must(t, os.Mkdir(filepath.Join(pins, NameOf(proxy)), 0o700))
	}
}

// TestNodeOnly leaves pods to the rules, also those that appear later.
func TestNodeOnly(t *testing.T) {
	inNode(t, func(n *node) {
		n.options.NodeOnly = true
		n.open(t)
		pod := subgroup(t, n.options.Cgroup, "kubepods/pod1/c1")
		at := greeter(t, "127.0.0.1:0").String()
		s := snapshot([]string{someService, at})
		n.sync(t, s)
		n.leadsTo(t, "a process of the node", at)
		a := startClient(t, pod, unix.CLONE_NEWNET).call(t, call{To: someService})
		kit.Check(t, a.Err == "network is unreachable", "a pod: %+v, want it left to the rules", a)
		plan := n.sync(t, s)
		kit.Check(t, plan == "", "plan without a change:\n%s", plan)
	})
}

// TestObjectIsCompiled compares the committed programs with their source.
func TestObjectIsCompiled(t *testing.T) {
	if _, err := exec.LookPath("clang-14"); err != nil {
		t.Skipf("the programs are compiled with clang-14, which build/setup.sh bpf installs: %v", err)
	}
	for name, have := range map[string][]byte{"socketlb": object, "watch": watchObject} {
		out := filepath.Join(t.TempDir(), name+".o")
		text, err := exec.Command("bpf/compile.sh", out).CombinedOutput()
		kit.Need(t, err == nil, "%v\n%s", err, text)
		kit.Check(t, bytes.Equal(kit.ReadFile(t, out), have),
			"bpf/%s.o is not what bpf/%[1]s.c compiles to: run make bpf", name)
	}
}
