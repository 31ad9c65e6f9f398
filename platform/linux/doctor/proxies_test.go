// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"testing"
	"testing/fstest"

	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/proc"
	"kubeproxy/platform/linux/sysctl"
)

func TestOtherProxies(t *testing.T) {
	one, two := proc.Process{PID: 7, Command: "kube-proxy --config=x"}, proc.Process{PID: 8, Command: "kube-proxy"}
	for situation, test := range map[string]struct {
		running []proc.Process
		holder  *lease.Identity
		name    string
		want    []string
		words   string
	}{
		"none":                   {nil, nil, "", nil, ""},
		"ours":                   {[]proc.Process{one}, &lease.Identity{PID: 7}, "", nil, ""},
		"kube-proxy alone":       {[]proc.Process{two}, nil, "", []string{"other-proxy | other-proxy | kill 8"}, "process 8"},
		"ours and another":       {[]proc.Process{one, two}, &lease.Identity{PID: 7}, "", []string{"other-proxy | other-proxy | kill 8"}, "process 7"},
		"two without a lease":    {[]proc.Process{one, two}, nil, "", []string{"other-proxy | other-proxy | kill 7 8"}, "process 8"},
		"ours in another space":  {nil, &lease.Identity{OwnPID: 1}, "", nil, ""},
		"a labelled one":         {[]proc.Process{{PID: 9, Command: "kube-proxy --service-proxy-name=edge"}}, nil, "", nil, ""},
		"this is a labelled one": {[]proc.Process{two}, nil, "edge", nil, ""},
	} {
		t.Run(situation, func(t *testing.T) {
			look := func(context.Context) (doctor.Seen, error) {
				return proxySeen(test.running, test.holder, test.name), nil
			}
			if test.words == "" {
				expect(t, look, test.want)
				return
			}
			expect(t, look, test.want, test.words)
		})
	}
	for command, is := range map[string]bool{"kube-proxy": false, "kube-proxy --config=x": false, "kube-proxy status shop/web": true, "/bin/kube-proxy doctor": true} {
		if got := isAnotherCommand(proc.Process{Command: command}); got != is {
			t.Errorf("%q asks: %t, want %t", command, got, is)
		}
	}
}

// procWith returns a /proc with one process that has the socket 77 open.
func procWith(command string) fstest.MapFS {
	return fstest.MapFS{
		"self/ns/net": {Data: []byte("net:[1]"), Mode: fs.ModeSymlink},
		"42/ns/net":   {Data: []byte("net:[1]"), Mode: fs.ModeSymlink},
		"42/fd/3":     {Data: []byte("socket:[77]"), Mode: fs.ModeSymlink},
		"42/cmdline":  {Data: []byte(command)},
		"42/comm":     {Data: []byte("kube-proxy\n")},
	}
}

const tcpTable = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
	"   0: 00000000:2810 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0"

func TestTakenPorts(t *testing.T) {
	health := netip.MustParseAddrPort("127.0.0.1:10256")
	for situation, test := range map[string]struct {
		proc fs.FS
		addr netip.AddrPort
		want []string
	}{
		"another program":    {procWith("nginx"), health, []string{"port-taken | 127.0.0.1:10256 | kill 42"}},
		"a proxy":            {procWith("/bin/kube-proxy\x00--config=x"), health, nil},
		"an unknown program": {fstest.MapFS{}, health, []string{"port-taken | 127.0.0.1:10256 | ss -lntp 'sport = :10256'"}},
		"another port":       {procWith("nginx"), netip.MustParseAddrPort("127.0.0.1:10249"), nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(map[string]string{"proc/thread-self/net/tcp": tcpTable})
			n.Proc, n.Servers = test.proc, []Server{{"health", "healthz-bind-address", test.addr}}
			expect(t, n.takenPorts, test.want)
			if situation == "another program" { // in fact ours, under another name
				n.Holder = func(context.Context) (lease.Identity, bool) { return lease.Identity{PID: 42}, true }
				expect(t, n.takenPorts, nil)
			}
			n.Answered = true
			expect(t, n.takenPorts, nil)
		})
	}
}

func TestHiddenListeners(t *testing.T) {
	n := newNode(map[string]string{"proc/thread-self/net/tcp": tcpTable})
	n.Proc = procWith("nginx")
	expect(t, n.hiddenListeners, nil)
	node := &service.Node{NodePorts: service.AnyAddress()}
	for port, want := range map[uint16][]string{10256: {"nodeport-hidden | 10256/tcp | kill 42"}, 10257: nil} {
		p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Frontends: []service.Frontend{{Kind: service.NodePort, Port: port}}}
		n.Services = func(context.Context) (*service.Snapshot, error) { return service.New(1, node, []*service.Port{p}), nil }
		expect(t, n.hiddenListeners, want)
	}
}

func TestLeftovers(t *testing.T) {
	find := func(what string) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { return what, nil }
	}
	n := newNode(nil)
	n.CleanupCommand = "kube-proxy --cleanup"
	n.Targets = []Target{{"iptables-legacy", false, find("4 chains")}, {"IPVS", false, find("")}, {"table ip kube-proxy", true, find("a table")}}
	expect(t, n.leftovers, []string{"leftovers | iptables-legacy | kube-proxy --cleanup", "leftovers | table ip kube-proxy | "}, "4 chains")
	n.Holder = func(context.Context) (lease.Identity, bool) { return lease.Identity{PID: 1}, true }
	expect(t, n.leftovers, nil)
	n.Holder, n.Proc = noHolder, procWith("kube-proxy")
	expect(t, n.leftovers, nil)
	expect(t, n.otherProxies, []string{"other-proxy | other-proxy | kill 42"})
	n.Answered = true
	expect(t, n.otherProxies, nil)
	n.Answered = false
	n.Proc, n.Targets = fstest.MapFS{}, []Target{{"x", false, func(context.Context) (string, error) { return "", fs.ErrPermission }}}
	if _, err := n.leftovers(t.Context()); err == nil {
		t.Error("a place that cannot be read is no error")
	}
}

func TestVariants(t *testing.T) {
	for situation, test := range map[string]struct {
		v    Variants
		want []string
	}{
		"no kubelet":   {Variants{Used: "nft"}, nil},
		"alike":        {Variants{Used: "nft", Kubelet: []string{"nft"}}, nil},
		"unlike":       {Variants{Used: "legacy", Kubelet: []string{"nft"}}, []string{"iptables-variants |  | update-alternatives --set iptables /usr/sbin/iptables-nft"}},
		"kubelet both": {Variants{Used: "nft", Kubelet: []string{"legacy", "nft"}}, []string{"iptables-variants |  | "}},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(nil)
			n.Modes, n.IPTables = mode("iptables"), func() (Variants, error) { return test.v, nil }
			expect(t, n.variants, test.want)
			n.Modes = mode("nftables")
			expect(t, n.variants, nil)
		})
	}
}

func TestXtablesLock(t *testing.T) {
	const root, proc = "1 0 0:30 / / rw - overlay overlay rw\n", "2 1 0:31 / /proc rw - proc proc rw\n"
	lost := []string{"xtables-lock |  | "}
	for situation, test := range map[string]struct {
		mounts, mode, variant string
		want                  []string
	}{
		"a host":                    {"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n" + proc, "iptables", "legacy", nil},
		"a container without it":    {root + proc, "iptables", "legacy", lost},
		"with a /run of its own":    {root + "3 1 0:40 / /run rw - tmpfs tmpfs rw\n", "ipvs", "legacy", lost},
		"with the lock of the host": {root + "3 1 0:40 / /run rw - tmpfs tmpfs rw\n4 3 0:25 /xtables.lock /run/xtables.lock rw shared:5 - tmpfs tmpfs rw\n", "iptables", "legacy", nil},
		"iptables-nft":              {root, "iptables", "nft", nil},
		"mode nftables":             {root, "nftables", "legacy", nil},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(map[string]string{"proc/self/mountinfo": test.mounts})
			n.Modes, n.IPTables = mode(test.mode), func() (Variants, error) { return Variants{Used: test.variant}, nil }
			expect(t, n.xtablesLock, test.want)
		})
	}
}

func TestModes(t *testing.T) {
	for situation, test := range map[string]struct {
		err  error
		want []string
	}{
		"it works":  {nil, nil},
		"a module":  {fmt.Errorf("nftables for IPv4: %w", sysctl.Missing(fs.ErrNotExist, "nft_masq", "nft_numgen", "nft_nat")), []string{"mode-unavailable | IPv4 | modprobe -a nft_masq nft_numgen nft_nat"}},
		"two":       {sysctl.Missing(sysctl.Missing(fs.ErrNotExist, "nft_masq", "nf_conntrack"), "nf_conntrack"), []string{"mode-unavailable | IPv4 | modprobe -a nf_conntrack nft_masq"}},
		"a command": {fmt.Errorf("exec: %w", errors.ErrUnsupported), []string{"mode-unavailable | IPv4 | "}},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(nil)
			expect(t, n.modeCheck(Mode{Name: "nftables", Probe: func(service.Family) error { return test.err }}).Look, test.want)
		})
	}
	n := newNode(nil)
	if _, err := n.modeCheck(Mode{Probe: func(service.Family) error { return fs.ErrPermission }}).Look(t.Context()); err == nil {
		t.Error("a probe without rights is no error")
	}
	n.Kernel = &fakeKernel{links: []Link{{Name: "eth0", Global: both(true, true)}}}
	seen, err := n.modeCheck(Mode{Name: "ipvs", Probe: func(f service.Family) error {
		if f == service.IPv6 {
			return errors.New("no IPv6")
		}
		return nil
	}}).Look(t.Context())
	if err != nil || len(seen.Findings) != 1 || seen.Findings[0].Severity != doctor.Risk {
		t.Errorf("without the other family: %+v, %v; want a risk", seen, err)
	}
	seen, err = n.modeCheck(Mode{Name: "ipvs", Optional: true, Probe: func(service.Family) error { return errors.New("nothing") }}).Look(t.Context())
	if err != nil || len(seen.Findings) != 1 || seen.Findings[0].Severity != doctor.Risk {
		t.Errorf("a mode that need not work: %+v, %v; want one risk", seen, err)
	}
}
