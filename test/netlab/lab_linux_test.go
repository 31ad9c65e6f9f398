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

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
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
	if _, err := h.Echo("", 8080); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, h *Host, q Query) Answer {
	t.Helper()
	a, err := h.Ask(t.Context(), q)
	if err != nil {
		t.Fatalf("%s asks %s %s: %v", h.Name, q.Proto, q.To, err)
	}
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
		if diff := cmp.Diff(want, got, cmp.Comparer(sameAddr), cmp.Comparer(samePort)); diff != "" {
			t.Fatalf("%s asks %s %s (-want +got):\n%s", from.Name, q.Proto, q.To, diff)
		}
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
	if err := client.AddAddr(second); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]netip.AddrPort{
		"address and port": netip.AddrPortFrom(second, 5555),
		"port only":        netip.AddrPortFrom(netip.Addr{}, 5556),
		"address only":     netip.AddrPortFrom(second, 0),
	} {
		t.Run(name, func(t *testing.T) {
			for _, proto := range []string{"tcp", "udp", "tcp", "udp"} { // repeated at once, too
				a := ask(t, client, Query{Proto: proto, To: netip.AddrPortFrom(pod.IPv4, 8080), From: from})
				if from.Addr().IsValid() && a.Client.Addr() != from.Addr() {
					t.Errorf("%s client seen as %s, want %s", proto, a.Client, from)
				}
				if from.Port() != 0 && a.Client.Port() != from.Port() {
					t.Errorf("%s client seen as %s, want %s", proto, a.Client, from)
				}
			}
		})
	}
	if err := client.DelAddr(second); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Ask(t.Context(), Query{Proto: "tcp", To: netip.AddrPortFrom(pod.IPv4, 8080), From: netip.AddrPortFrom(second, 0)}); err == nil {
		t.Error("asked from an address that was removed")
	}
}

// TestAddressesUsableAtOnce checks that an address of the lab, or one added later, can be
// used without a delay.
func TestAddressesUsableAtOnce(t *testing.T) {
	lab := Start(t, Config{Pods: []string{"pod"}, Clients: []string{"client"}})
	inUse := func(h *Host, a netip.Addr) {
		t.Helper()
		if ok, err := h.routed([]netlink.Addr{{IPNet: ipNet(netip.PrefixFrom(a, a.BitLen()))}}); !ok || err != nil {
			t.Errorf("%s of %s is not in use, %v", a, h.Name, err)
		}
	}
	for _, h := range []*Host{lab.Node, lab.Other, lab.Host("pod"), lab.Host("client")} {
		inUse(h, h.IPv4)
		inUse(h, h.IPv6)
	}
	for i := range 8 {
		a := netip.MustParseAddr(fmt.Sprintf("2001:db8:2::2%02d", i))
		if err := lab.Host("client").AddAddr(a); err != nil {
			t.Fatal(err)
		}
		inUse(lab.Host("client"), a)
	}
}

func TestProcesses(t *testing.T) {
	lab, err := New(Config{Pods: []string{"pod"}})
	if errors.Is(err, ErrNotAllowed) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	list := self("list")
	list.Stdout = &out
	if err := errors.Join(lab.Node.Start(list), list.Wait()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"lo", "eth0", "veth-pod"}, strings.Fields(out.String())); diff != "" {
		t.Errorf("interfaces of the node (-want +got):\n%s", diff)
	}
	wait := self("wait")
	pipe, err := wait.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := lab.Node.Start(wait); err != nil {
		t.Fatal(err)
	}
	if _, err := pipe.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := lab.Close(); err != nil {
		t.Error(err)
	}
	if err := wait.Wait(); err == nil || wait.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("process left in a closed lab ended with %v, want killed", err)
	}
}

func TestDoRestoresNamespace(t *testing.T) {
	home, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	lab := Start(t, Config{Pods: []string{"pod"}})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			err := lab.Host("pod").Do(func() error {
				there, err := os.Readlink("/proc/thread-self/ns/net")
				if there == home {
					t.Error("Do runs outside the lab")
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for range 20 { // as many goroutines, each with the thread to itself
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if here, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || here != home {
				t.Errorf("a goroutine runs in %s, %v, want %s", here, err, home)
			}
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
	if err != nil || !strings.Contains(string(out), "--- PASS: TestSourceOfChoice") {
		t.Errorf("lab as another user: %v\n%s", err, out)
	}
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
			if lab != nil || err == nil || err.Error() != tc.want {
				t.Errorf("New = %v, %v, want nil, %s", lab, err, tc.want)
			}
		})
	}
}
