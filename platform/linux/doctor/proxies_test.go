// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/proc"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/platform/linux/sysctl"
	"kubeproxy/test/kit"
)

func TestOtherProxies(t *testing.T) {
	one, two := proc.Process{PID: 7, Command: "kube-proxy --config=x"}, proc.Process{PID: 8, Command: "kube-proxy"}
	for situation, test := range map[string]struct {
		running []proc.Process
		holder  *lease.Identity
		asked   int
		name    string
		want    []string
		words   string
	}{
		"none":                   {nil, nil, 0, "", nil, ""},
		"ours":                   {[]proc.Process{one}, &lease.Identity{PID: 7}, 0, "", nil, ""},
		"kube-proxy alone":       {[]proc.Process{two}, nil, 0, "", []string{"other-proxy | other-proxy | "}, "process 8 kill 8"},
		"ours and another":       {[]proc.Process{one, two}, &lease.Identity{PID: 7}, 0, "", []string{"other-proxy | other-proxy | "}, "process 7 kill 8"},
		"asked, not the holder":  {[]proc.Process{one, two}, &lease.Identity{PID: 7}, 8, "", []string{"other-proxy | other-proxy | "}, "process 7 kill 7"},
		"asked, holder unseen":   {[]proc.Process{two}, &lease.Identity{OwnPID: 1}, 8, "", nil, ""},
		"two without a lease":    {[]proc.Process{one, two}, nil, 0, "", []string{"other-proxy | other-proxy | "}, "process 8 kill 7 8"},
		"ours in another space":  {nil, &lease.Identity{OwnPID: 1}, 0, "", nil, ""},
		"a labelled one":         {[]proc.Process{{PID: 9, Command: "kube-proxy --service-proxy-name=edge"}}, nil, 0, "", nil, ""},
		"this is a labelled one": {[]proc.Process{two}, nil, 0, "edge", nil, ""},
	} {
		t.Run(situation, func(t *testing.T) {
			look := func(context.Context) (doctor.Seen, error) {
				return proxySeen(test.running, test.holder, test.asked, test.name), nil
			}
			if test.words == "" {
				expect(t, look, test.want)
				return
			}
			expect(t, look, test.want, test.words[:9], test.words[10:])
		})
	}
	for command, is := range map[string]bool{"kube-proxy": false, "kube-proxy --config=x": false, "kube-proxy status shop/web": true, "/bin/kube-proxy doctor": true} {
		kit.Equal(t, isAnotherCommand(proc.Process{Command: command}), is, "%q asks", command)
	}
}

// TestHungProxy checks that the only process of a proxy is described, with its state.
func TestHungProxy(t *testing.T) {
	n := newNode(nil)
	for state, want := range map[string]string{"": "runs", "42 (kube) proxy) S 1": "runs", "42 (kube-proxy) T 1": "but is stopped", "42 (kube-proxy) D 1": "but waits in the kernel"} {
		proc := procWith("kube-proxy")
		proc["42/stat"] = &fstest.MapFile{Data: []byte(state)}
		n.Proc = proc
		what, advice, several := n.Hung()
		if !strings.HasPrefix(what, "process 42 (kube-proxy) runs") || !strings.HasSuffix(what, want) || strings.Contains(advice, "kill -CONT 42") != strings.Contains(want, "stopped") || several {
			t.Errorf("%q: %q, %q, several %t", state, what, advice, several)
		}
	}
	n = newNode(map[string]string{"proc/thread-self/net/unix": leaseTable})
	n.Proc = procWith("proxyd")
	what, _, _ := n.Hung()
	kit.Check(t, what == "process 42 (proxyd) runs", "a program of another name that has the lease: %q", what)
	n.ProxyName = "edge"
	what, _, _ = n.Hung()
	kit.Check(t, what == "", "and another lease: %q", what)
	n = newNode(nil)
	n.Proc = procWith("kube-proxy\x00--service-proxy-name=edge")
	for name, hangs := range map[string]bool{"": false, "edge": true} {
		n.ProxyName = name
		what, _, several := n.Hung()
		kit.Check(t, (what != "") == hangs && !several, "for Services of %q: %q", name, what)
	}
}

// procWith returns a /proc with one process that has the socket 77 open.
func procWith(command string) fstest.MapFS {
	program, _, _ := strings.Cut(command, "\x00")
	return fstest.MapFS{
		"self/ns/net": {Data: []byte("net:[1]"), Mode: fs.ModeSymlink},
		"42/ns/net":   {Data: []byte("net:[1]"), Mode: fs.ModeSymlink},
		"42/fd/3":     {Data: []byte("socket:[77]"), Mode: fs.ModeSymlink},
		"42/cmdline":  {Data: []byte(command)},
		"42/comm":     {Data: []byte(path.Base(program) + "\n")},
	}
}

const tcpTable = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
	"   0: 00000000:2810 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 77 1 0"

// TestAskedProxy checks that the process that listens where a proxy answered is known.
func TestAskedProxy(t *testing.T) {
	n := newNode(map[string]string{"proc/thread-self/net/tcp": tcpTable})
	n.Proc = procWith("kube-proxy")
	for at, want := range map[string]int{"": 0, "127.0.0.1:10256": 42, "127.0.0.1:10249": 0} {
		n.AnsweredAt, _ = netip.ParseAddrPort(at)
		kit.Equal(t, n.asked(), want, "that at %q", at)
	}
}

// leaseTable has a connection to the lease's holder, and its listener.
const leaseTable = "Num       RefCount Protocol Flags    Type St Inode Path\n" +
	"0: 00000003 00000000 00000000 0001 03 76 @kube-services/lease\n1: 00000002 00000000 00010000 0001 01 77 @kube-services/lease\n"

func TestTakenPorts(t *testing.T) {
	health := netip.MustParseAddrPort("127.0.0.1:10256")
	for situation, test := range map[string]struct {
		proc fs.FS
		addr netip.AddrPort
		want string // in the advice
	}{
		"another program":    {procWith("nginx"), health, "kill 42"},
		"a proxy":            {procWith("/bin/kube-proxy\x00--config=x"), health, ""},
		"an unknown program": {fstest.MapFS{}, health, "ss -lntp 'sport = :10256'"},
		"another port":       {procWith("nginx"), netip.MustParseAddrPort("127.0.0.1:10249"), ""},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newNode(map[string]string{"proc/thread-self/net/tcp": tcpTable})
			n.Proc, n.Servers = test.proc, []doctor.Server{{Name: "health", Flag: "healthz-bind-address", Addr: test.addr}}
			if test.want == "" {
				expect(t, n.takenPorts, nil)
			} else {
				expect(t, n.takenPorts, []string{"port-taken | 127.0.0.1:10256 | "}, test.want, "--healthz-bind-address")
			}
			if situation == "another program" { // in fact ours, under another name
				n.Holder = func(context.Context) (lease.Identity, error) { return lease.Identity{PID: 42}, nil }
				expect(t, n.takenPorts, nil)
				n.Holder = noHolder // as it hangs
				n.Files.(fstest.MapFS)["proc/thread-self/net/unix"] = &fstest.MapFile{Data: []byte(leaseTable)}
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
	for port, want := range map[uint16][]string{10256: {"nodeport-hidden | 10256/tcp | "}, 10257: nil} {
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
	expect(t, n.leftovers, []string{"leftovers | iptables-legacy | ", "leftovers | table ip kube-proxy | "}, "4 chains", "start the proxy", "kube-proxy --cleanup")
	n.Holder = func(context.Context) (lease.Identity, error) { return lease.Identity{PID: 1}, nil }
	expect(t, n.leftovers, nil)
	n.Holder, n.Proc = noHolder, procWith("kube-proxy")
	expect(t, n.leftovers, nil)
	expect(t, n.otherProxies, nil) // one is not two, even if it hangs
	n.BeforeStart = true
	expect(t, n.otherProxies, []string{"other-proxy | other-proxy | "}, "kill 42")
	n.Answered = true
	expect(t, n.otherProxies, nil)
	n.Answered = false
	n.Proc, n.Targets = fstest.MapFS{}, []Target{{"x", false, func(context.Context) (string, error) { return "", fs.ErrPermission }}}
	_, err := n.leftovers(t.Context())
	kit.Check(t, err != nil, "a place that cannot be read is no error")
}

func TestVariants(t *testing.T) {
	for situation, test := range map[string]struct {
		v    Variants
		want []string
	}{
		"no kubelet":   {Variants{Used: "nft"}, nil},
		"alike":        {Variants{Used: "nft", Kubelet: []string{"nft"}}, nil},
		"unlike":       {Variants{Used: "legacy", Kubelet: []string{"nft"}}, []string{"iptables-variants |  | "}},
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
	kit.Check(t, err == nil && len(seen.Findings) == 1 && seen.Findings[0].Severity == doctor.Risk,
		"without the other family: %+v, %v; want a risk", seen, err)
	seen, err = n.modeCheck(Mode{Name: "ipvs", Optional: true, Probe: func(service.Family) error { return errors.New("nothing") }}).Look(t.Context())
	kit.Check(t, err == nil && len(seen.Findings) == 1 && seen.Findings[0].Severity == doctor.Risk,
		"a mode that need not work: %+v, %v; want one risk", seen, err)
}

const (
	unifiedMount = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
	legacyMount  = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"
	bpfMount     = "bpf /sys/fs/bpf bpf rw 0 0\n"
	// rights has the capabilities BPF, PERFMON and NET_ADMIN.
	rights = "Name:\tkube-proxy\nCapEff:\t000000c000001000\nSeccomp:\t0"
	cpu    = "processor\t: 0\nflags\t\t: fpu lm"
)

// wholeSite has all that socket acceleration needs.
var wholeSite = socketlb.Site{Root: "/sys/fs/cgroup", Whole: true, Pods: "/sys/fs/cgroup/kubepods"}

// newAccelerated returns a node with all that socket acceleration needs, where files are as
// given, and what the kernel has of it.
func newAccelerated(files map[string]string, p socketlb.Presence) *Node {
	all := map[string]string{
		"proc/self/mounts": unifiedMount + bpfMount, "proc/self/status": rights,
		"proc/sys/kernel/osrelease": "6.19.2-cloud", "proc/cpuinfo": cpu + " cx16",
	}
	maps.Copy(all, files)
	n := newNode(all)
	n.Acceleration = Acceleration{
		Wanted: true, RemoveCommand: "REMOVE",
		Site: func() (socketlb.Site, error) { return wholeSite, nil },
		Present: func(f service.Family) (socketlb.Presence, error) {
			if f == service.IPv6 {
				return socketlb.Presence{}, nil
			}
			return p, nil
		},
	}
	return n
}

// TestAccelerationLacks takes from a sound node one thing after the other.
func TestAccelerationLacks(t *testing.T) {
	const topic = "socket-acceleration | "
	release := func(r string) map[string]string { return map[string]string{"proc/sys/kernel/osrelease": r} }
	mounts := func(m string) map[string]string { return map[string]string{"proc/self/mounts": m} }
	effective := func(set string) map[string]string {
		return map[string]string{"proc/self/status": "Name:\tx\nCapEff:\t" + set + "\nSeccomp:\t0"}
	}
	for situation, test := range map[string]struct {
		files map[string]string
		site  socketlb.Site
		want  string
		words string
	}{
		"nothing":                      {nil, wholeSite, "", ""},
		"an old kernel":                {merged(release("5.4.0-216-generic"), effective("000000c001001000")), wholeSite, topic + "kernel | ", "Linux 5.4.0-216-generic"},
		"the oldest kernel":            {merged(release("5.10.0"), effective("000000c001001000")), wholeSite, "", ""},
		"no programs":                  {nil, socketlb.Site{Root: "/sys/fs/cgroup", Whole: true, NoPrograms: true}, topic + "kernel | ", "runs no programs"},
		"no cgroups at all":            {mounts(bpfMount), socketlb.Site{}, topic + "cgroups | mount -t cgroup2 cgroup2 /sys/fs/cgroup", "version 2"},
		"cgroups of version 1":         {mounts(legacyMount + bpfMount), socketlb.Site{}, topic + "cgroups | " + mountHybrid, "version 2"},
		"only its own cgroup":          {nil, socketlb.Site{Root: "/sys/fs/cgroup"}, topic + "cgroups | ", "its own container at /sys/fs/cgroup"},
		"a node that is a container":   {nil, socketlb.Site{Root: "/sys/fs/cgroup", Pods: "/sys/fs/cgroup/kubelet/kubepods"}, "", ""},
		"no pods yet":                  {nil, socketlb.Site{Root: "/sys/fs/cgroup", Whole: true}, "", ""},
		"no BPF file system":           {mounts(unifiedMount), wholeSite, topic + "bpf-file-system | mount -t bpf bpf /sys/fs/bpf", "/sys/fs/bpf"},
		"two BPF file systems":         {mounts(unifiedMount + bpfMount + bpfMount), wholeSite, "acceleration-mounts |  | ", "2 BPF file systems"},
		"none in a container":          {mounts("overlay / overlay rw 0 0\n" + unifiedMount), wholeSite, topic + "bpf-file-system | ", "/sys/fs/bpf"},
		"no cgroups in a container":    {mounts("overlay / overlay rw 0 0\n" + legacyMount + bpfMount), socketlb.Site{}, topic + "cgroups | ", "version 2"},
		"one elsewhere":                {mounts(unifiedMount + "bpf /mnt bpf rw 0 0\n"), wholeSite, topic + "bpf-file-system | mount -t bpf bpf /sys/fs/bpf", ""},
		"no capabilities":              {effective("0"), wholeSite, topic + "capabilities | ", "this process lacks BPF, PERFMON, NET_ADMIN"},
		"no PERFMON":                   {effective("0000008000001000"), wholeSite, topic + "capabilities | ", "lacks PERFMON"},
		"SYS_ADMIN":                    {effective("0000000000201000"), wholeSite, "", ""},
		"no SYS_RESOURCE, and old":     {release("5.10.1"), wholeSite, topic + "capabilities | ", "lacks SYS_RESOURCE"},
		"a processor without cx16":     {map[string]string{"proc/cpuinfo": cpu}, wholeSite, "acceleration-peers |  | ", "6.19.2-cloud"},
		"one with an older kernel":     {merged(map[string]string{"proc/cpuinfo": cpu}, release("6.18.44")), wholeSite, "", ""},
		"a processor of another make":  {map[string]string{"proc/cpuinfo": "Features\t: fp asimd"}, wholeSite, "", ""},
		"a release with another shape": {release("custom"), wholeSite, "", ""},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newAccelerated(test.files, socketlb.Presence{})
			n.Acceleration.Site = func() (socketlb.Site, error) { return test.site, nil }
			if test.want == "" {
				expect(t, n.acceleration, nil)
			} else {
				expect(t, n.acceleration, []string{test.want}, test.words)
			}
			n.Acceleration.Wanted = false
			expect(t, n.acceleration, nil)
		})
	}
}

func merged(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// TestConfinement has AppArmor or SELinux confine the proxy. A profile of the user's own may let it pass, and does if
// the layer is there.
func TestConfinement(t *testing.T) {
	const topic = "socket-acceleration | "
	label := func(text string) map[string]string { return map[string]string{"proc/self/attr/current": text} }
	const container = "system_u:system_r:container_t:s0:c12,c40\x00"
	for situation, test := range map[string]struct {
		files map[string]string
		there bool
		want  string
		words string
	}{
		"no module":                     {nil, false, "", ""},
		"not confined":                  {label("unconfined"), false, "", ""},
		"containerd's profile":          {label("cri-containerd.apparmor.d (enforce)"), true, topic + "apparmor | ", "profile cri-containerd.apparmor.d, which lets it write nothing below /sys/fs/bpf"},
		"it only complains":             {label("cri-containerd.apparmor.d (complain)"), false, "", ""},
		"a profile of the user's":       {label("proxy (enforce)"), false, topic + "apparmor | ", "profile proxy, which may let"},
		"one that lets it pass":         {label("proxy (enforce)"), true, "", ""},
		"a container":                   {label(container), false, topic + "selinux | ", "this process has the SELinux type container_t"},
		"one of another type":           {label("u:r:container_init_t:s0"), false, topic + "selinux | ", "container_init_t"},
		"a container that may do all":   {label("system_u:system_r:spc_t:s0"), false, "", ""},
		"a service of the node":         {label("system_u:system_r:unconfined_service_t:s0"), false, "", ""},
		"SELinux that refuses nothing":  {merged(label(container), map[string]string{"sys/fs/selinux/enforce": "0"}), false, "", ""},
		"SELinux that says it enforces": {merged(label(container), map[string]string{"sys/fs/selinux/enforce": "1"}), false, topic + "selinux | ", "BPF"},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newAccelerated(test.files, socketlb.Presence{Installed: test.there, Known: true, Pods: true})
			var want []string
			if test.want != "" {
				want = []string{test.want}
			}
			expect(t, n.acceleration, want, words(test.words)...)
			n.Acceleration.Wanted = false
			if seen, err := n.acceleration(t.Context()); err != nil || len(seen.Findings) > 0 && seen.Findings[0].Subject != "" {
				t.Errorf("it is off: %+v, %v", seen, err)
			}
		})
	}
	n := newAccelerated(label(container), socketlb.Presence{})
	n.Files.(fstest.MapFS)["proc/7/status"] = &fstest.MapFile{Data: []byte(rights)}
	n.Files.(fstest.MapFS)["proc/7/attr/current"] = &fstest.MapFile{Data: []byte("docker-default (enforce)\n")}
	n.Holder = func(context.Context) (lease.Identity, error) { return lease.Identity{PID: 7}, nil }
	expect(t, n.acceleration, []string{topic + "apparmor | "}, "process 7", "docker-default")
}

// TestAccelerationRightsOfTheProxy takes the capabilities of the proxy that runs, not those
// of doctor.
func TestAccelerationRightsOfTheProxy(t *testing.T) {
	n := newAccelerated(map[string]string{"proc/7/status": "Name:\tx\nCapEff:\t0000000000001000\n"}, socketlb.Presence{})
	n.Holder = func(context.Context) (lease.Identity, error) { return lease.Identity{PID: 7}, nil }
	expect(t, n.acceleration, []string{"socket-acceleration | capabilities | "}, "process 7", "lacks BPF, PERFMON")
	n.Holder = func(context.Context) (lease.Identity, error) { return lease.Identity{OwnPID: 1}, nil }
	expect(t, n.acceleration, nil)
}

// TestAccelerationState checks what is said of a layer that the kernel has.
func TestAccelerationState(t *testing.T) {
	whole := socketlb.Presence{Installed: true, Known: true, Pods: true}
	faulty, nodeOnly, hidden := whole, whole, socketlb.Presence{Installed: true}
	faulty.Fault, nodeOnly.Pods = "program connect4 was detached", false
	others := whole
	others.Others = "programs with the ids 7"
	holder := func(context.Context) (lease.Identity, error) { return lease.Identity{PID: 1}, nil }
	other := procWith("kube-proxy\x00--config=x")
	left, detached := []string{"acceleration-left |  | REMOVE"}, "acceleration-detached | IPv4 | "
	for situation, test := range map[string]struct {
		p        socketlb.Presence
		wanted   bool
		holder   func(context.Context) (lease.Identity, error)
		answered bool
		proc     fs.FS
		noPods   bool
		want     []string
		words    string
	}{
		"sound":                            {whole, true, holder, true, nil, false, nil, ""},
		"left by a stop":                   {whole, true, noHolder, false, nil, false, nil, ""},
		"others":                           {others, true, holder, true, nil, false, []string{"acceleration-others | IPv4 | REMOVE"}, "ids 7"},
		"detached":                         {faulty, true, holder, true, nil, false, []string{detached}, "connect4 was detached"},
		"detached after a stop":            {faulty, true, noHolder, false, nil, false, []string{detached + "REMOVE"}, "connect4"},
		"pins are not mounted":             {hidden, true, holder, true, nil, true, nil, ""},
		"pods are missed":                  {nodeOnly, true, holder, true, nil, true, []string{"acceleration-pods |  | "}, "over IPv4 are not taken"},
		"pods appeared":                    {nodeOnly, true, holder, true, nil, false, nil, ""},
		"switched off, no proxy":           {whole, false, noHolder, false, nil, false, left, "which is off"},
		"switched off, not removed":        {whole, false, holder, true, nil, false, left, "could not remove it"},
		"switched off, pins not mounted":   {hidden, false, noHolder, false, nil, false, left, "of IPv4"},
		"the flags of the proxy unknown":   {whole, false, holder, false, nil, false, nil, ""},
		"kube-proxy runs":                  {whole, false, noHolder, false, other, false, left, "does not update it: process 42"},
		"kube-proxy runs, and it is on":    {whole, true, noHolder, false, other, false, left, "does not update it"},
		"kube-proxy runs, programs a rest": {faulty, false, noHolder, false, other, false, left, "does not update it"},
		"a labelled proxy runs":            {whole, true, noHolder, false, procWith("kube-proxy\x00--service-proxy-name=edge"), false, nil, ""},
	} {
		t.Run(situation, func(t *testing.T) {
			n := newAccelerated(nil, test.p)
			n.Acceleration.Wanted, n.Holder, n.Answered = test.wanted, test.holder, test.answered
			if test.proc != nil {
				n.Proc = test.proc
			}
			if test.noPods {
				n.Acceleration.Site = func() (socketlb.Site, error) { return socketlb.Site{Root: "/sys/fs/cgroup", Whole: true}, nil }
			}
			expect(t, n.acceleration, test.want, words(test.words)...)
		})
	}
}

func words(of string) []string {
	if of == "" {
		return nil
	}
	return []string{of}
}

// TestAccelerationOfTwoHierarchies has version 2 mounted where no container runtime looks.
func TestAccelerationOfTwoHierarchies(t *testing.T) {
	n := newAccelerated(map[string]string{"proc/self/mounts": legacyMount + "cgroup2 /mnt/cgroup cgroup2 rw 0 0\n" + bpfMount}, socketlb.Presence{Installed: true, Known: true})
	for root, fix := range map[string]string{"/mnt/cgroup": mountHybrid, hybridRoot: ""} {
		n.Acceleration.Site = func() (socketlb.Site, error) { return socketlb.Site{Root: root, Whole: true}, nil }
		expect(t, n.acceleration, []string{"acceleration-pods |  | " + fix}, root)
	}
}

// TestAccelerationFailures has what is asked fail.
func TestAccelerationFailures(t *testing.T) {
	failed := errors.New("failed")
	n := newAccelerated(nil, socketlb.Presence{})
	n.Acceleration.Present = func(service.Family) (socketlb.Presence, error) { return socketlb.Presence{}, failed }
	_, err := n.acceleration(t.Context())
	kit.Check(t, errors.Is(err, failed), "the kernel cannot be asked: %v", err)
	n.Acceleration.Wanted = false
	expect(t, n.acceleration, nil)
	n.Acceleration.Present = func(service.Family) (socketlb.Presence, error) {
		return socketlb.Presence{}, &socketlb.UnseenError{Err: failed}
	}
	if seen, err := n.acceleration(t.Context()); err != nil || !seen.Absent || !strings.Contains(seen.Note, "it is unknown whether the kernel has it") {
		t.Errorf("a process that may not look: %+v, %v", seen, err)
	}
	n = newAccelerated(nil, socketlb.Presence{})
	n.Acceleration.Site = func() (socketlb.Site, error) { return socketlb.Site{}, failed }
	if _, err := n.acceleration(t.Context()); !errors.Is(err, failed) {
		t.Errorf("the node cannot be looked at: %v", err)
	}
	for _, name := range []string{"proc/self/mounts", "proc/self/status", "proc/sys/kernel/osrelease"} {
		n = newAccelerated(nil, socketlb.Presence{})
		delete(n.Files.(fstest.MapFS), name)
		_, err := n.acceleration(t.Context())
		kit.Check(t, errors.Is(err, fs.ErrNotExist) && strings.Contains(err.Error(), name), "without %s: %v", name, err)
	}
}
