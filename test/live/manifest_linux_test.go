// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftcommand"
	"kubeproxy/test/program"
)

// target is the port that endpoints listen on.
const target = 8080

// app is a Service in namespace shop with an address of each kind, in both families and
// over each of the protocols. Its addresses follow from its number, which goes up to 999.
type app struct {
	name     string
	number   int
	internal corev1.ServiceInternalTrafficPolicy
	external corev1.ServiceExternalTrafficPolicy
	sticky   int32 // seconds that ClientIP affinity lasts, 0 for none
	ranges   []string
	pods     []pod
	plain    bool // without SCTP, which mode userspace cannot forward
	// selection is the annotation, empty for none.
	selection track.Selection
}

// pod is an endpoint: a host of the lab and its state.
type pod struct {
	host  *netlab.Host
	state state
}

type state uint8

const (
	ready       state = iota
	unready           // neither ready nor serving
	terminating       // but still serving
	ended             // terminating and no longer serving
)

// address returns the app's address of a kind and family, invalid for a NodePort.
func (a app) address(k service.Kind, f service.Family) netip.Addr {
	base := map[service.Kind][2]string{
		service.ClusterIP:      {"10.96.0.0", "fd00:10:96::"},
		service.ExternalIP:     {"198.51.0.0", "2001:db8:51::"},
		service.LoadBalancerIP: {"203.0.0.0", "2001:db8:203::"},
	}[k]
	if base[f] == "" {
		return netip.Addr{}
	}
	b := netip.MustParseAddr(base[f]).AsSlice()
	b[len(b)-2], b[len(b)-1] = byte(a.number>>8), byte(a.number)
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// at returns where clients dial a kind of address, that of node-a for a NodePort.
func (a app) at(k service.Kind, f service.Family) netip.AddrPort {
	if k == service.NodePort {
		node := [2]string{"192.0.2.10", "2001:db8:2::10"}[f]
		return netip.AddrPortFrom(netip.MustParseAddr(node), a.nodePort())
	}
	return netip.AddrPortFrom(a.address(k, f), 80)
}

func (a app) nodePort() uint16 { return uint16(30000 + a.number) }

// on returns a with ready endpoints on hosts instead of its own.
func (a app) on(hosts ...*netlab.Host) app {
	a.pods = nil
	for _, h := range hosts {
		a.pods = append(a.pods, pod{host: h})
	}
	return a
}

// with returns a with one more endpoint.
func (a app) with(h *netlab.Host, s state) app {
	a.pods = append(a.pods[:len(a.pods):len(a.pods)], pod{h, s})
	return a
}

// yaml returns a as a manifest: the Service and a slice for each family.
func (a app) yaml(t *testing.T) []byte {
	t.Helper()
	return program.Manifest[any](t, a.service(), a.slice(service.IPv4), a.slice(service.IPv6))
}

func (a app) service() *corev1.Service {
	s := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: a.name},
	}
	if a.selection != "" {
		s.Annotations = map[string]string{track.AnnotationSelection: string(a.selection)}
	}
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = a.external
	if a.internal != "" {
		s.Spec.InternalTrafficPolicy = &a.internal
	}
	s.Spec.LoadBalancerSourceRanges = a.ranges
	for _, f := range service.Families {
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, corev1.IPFamily(f.String()))
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, a.address(service.ClusterIP, f).String())
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, a.address(service.ExternalIP, f).String())
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: a.address(service.LoadBalancerIP, f).String()})
	}
	s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
	for _, p := range a.protocols() {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: portName(p), Protocol: apiName(p), Port: 80, TargetPort: intstr.FromInt32(target), NodePort: int32(a.nodePort()),
		})
	}
	if a.sticky > 0 {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &a.sticky},
		}
	}
	return s
}

// protocols are those that the kernel has sockets for.
func protocols() []service.Protocol {
	if netlab.SCTP() {
		return []service.Protocol{service.TCP, service.UDP, service.SCTP}
	}
	return []service.Protocol{service.TCP, service.UDP}
}

// protocols are those of a's ports.
func (a app) protocols() []service.Protocol {
	return slices.DeleteFunc(protocols(), func(p service.Protocol) bool { return a.plain && p == service.SCTP })
}

func apiName(p service.Protocol) corev1.Protocol { return corev1.Protocol(strings.ToUpper(p.String())) }

func portName(p service.Protocol) string {
	return map[service.Protocol]string{service.TCP: "lines", service.UDP: "packets", service.SCTP: "messages"}[p]
}

func (a app) slice(f service.Family) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: fmt.Sprintf("%s-%s", a.name, []string{"v4", "v6"}[f]),
			Labels: map[string]string{discoveryv1.LabelServiceName: a.name},
		},
		AddressType: discoveryv1.AddressType(f.String()),
	}
	for _, p := range a.protocols() {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(portName(p)), Protocol: new(apiName(p)), Port: new(int32(target))})
	}
	for _, p := range a.pods {
		s.Endpoints = append(s.Endpoints, p.endpoint(f))
	}
	return s
}

func (p pod) endpoint(f service.Family) discoveryv1.Endpoint {
	node := netlab.NodeName
	if !judge.OnNode(p.host.IPv4) {
		node = netlab.OtherName
	}
	addr := [2]netip.Addr{p.host.IPv4, p.host.IPv6}[f]
	e := discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: &node}
	e.Conditions.Ready = new(p.state == ready)
	e.Conditions.Serving = new(p.state == ready || p.state == terminating)
	e.Conditions.Terminating = new(p.state == terminating || p.state == ended)
	return e
}

// node is node-a as the API would return it.
func node() *corev1.Node {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	n.Name = netlab.NodeName
	n.Spec.PodCIDRs = []string{"10.244.1.0/24", "fd00:10:244:1::/64"}
	for _, a := range []string{"192.0.2.10", "2001:db8:2::10"} {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

// TestFaultsOfManifestsEnd breaks two manifests and repairs them one by one: the status
// command and the log follow.
func TestFaultsOfManifestsEnd(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	p := c.start(t, app{name: "web", number: 10}.on(c.webs()...))
	shows := func(words, absent []string) {
		t.Helper()
		var out string
		kit.Until(t, "the status with "+strings.Join(words, ", ")+" and without "+strings.Join(absent, ", "), func() bool {
			out, _ = program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status", "--output=wide"))
			has := func(w string) bool { return strings.Contains(out, w) }
			for _, w := range words {
				if !has(w) {
					return false
				}
			}
			for _, w := range absent {
				if has(w) {
					return false
				}
			}
			return true
		})
	}
	shows([]string{"manifests  synced"}, []string{"WHAT IS WRONG"})
	c.write(t, "one.yaml", []byte("kind: ["))
	c.write(t, "two.yaml", []byte("apiVersion: v1\nkind: Service\nmetadata: {name: two}\nspec: {prots: []}\n"))
	shows([]string{"two.yaml: document at line 1: Service default/two", "; and 1 more", "manifests: 2 faults"}, nil)
	c.write(t, "two.yaml", app{name: "two", number: 12}.yaml(t))
	shows([]string{"one.yaml: document at line 1: ", "manifests: 1 fault"}, []string{"two.yaml", "; and "})
	p.AwaitLog(t, "A manifest can be used again, or is gone", "two.yaml: Service default/two")
	c.write(t, "one.yaml", app{name: "one", number: 11}.yaml(t))
	shows([]string{"manifests  synced", "3 Services"}, []string{".yaml", "WHAT IS WRONG"})
	p.AwaitLog(t, "A manifest can be used again, or is gone", "one.yaml: document at line 1")
}

// TestBrokenFile checks that a broken file removes nothing: it is reported with the place
// of the fault, and all good objects stay in force.
func TestBrokenFile(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	cart := app{name: "cart", number: 11}.on(c.Host("web-1"))
	p := c.start(t, web, cart)
	want := c.awaitProgrammed(t)
	good := cart.yaml(t)

	for _, tc := range []struct {
		name string
		text []byte
		said []string
	}{
		{"no YAML", append(good[:len(good):len(good)], "---\nkind: [\n"...), []string{"cart.yaml", "line "}},
		{"a misspelt field", bytes.Replace(good, []byte("clusterIPs:"), []byte("clusterIps:"), 1),
			[]string{"cart.yaml", "line ", "Service shop/cart", "clusterIps", "did you mean clusterIPs?"}},
		{"a wrong type", bytes.Replace(good, []byte("port: 80\n"), []byte("port: http\n"), 1),
			[]string{"cart.yaml", "Service shop/cart", "spec.ports", "number"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.write(t, "cart.yaml", tc.text)
			p.AwaitLog(t, append(tc.said, "last good")...)
			c.awaitSnapshot(t, want)
			c.check(t, want, c.cells(c.clientHosts()[:1], web, cart))
		})
	}
	t.Run("a directory", func(t *testing.T) {
		c.remove(t, "cart.yaml")
		kit.Must(t, os.Mkdir(filepath.Join(c.dir, "cart.yaml"), 0o755))
		p.AwaitLog(t, "cart.yaml", "directory")
		c.check(t, want, c.cells(c.clientHosts()[:1], web))
		kit.Must(t, os.Remove(filepath.Join(c.dir, "cart.yaml")))
	})
	t.Run("another file changes meanwhile", func(t *testing.T) {
		c.write(t, "broken.yaml", []byte("kind: [\n"))
		p.AwaitLog(t, "broken.yaml", "line 1")
		c.save(t, web.on(c.Host("web-2")), cart)
		c.remove(t, "broken.yaml")
		c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web, cart))
	})
	if p.Log.Count("cart.yaml", "did you mean") != 1 {
		t.Errorf("the problem was reported %d times, want once", p.Log.Count("cart.yaml", "did you mean"))
	}
}

// TestMountedVolume checks a volume, which is a directory of links through one link that
// is swapped. It may be given as a whole or file by file.
func TestMountedVolume(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}
	c.mount(t, "..first", web.on(c.Host("web-1")))
	kit.Must(t, os.Symlink(filepath.Join("..data", "web.yaml"), filepath.Join(c.dir, "web.yaml")))
	p := c.start(t)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
	c.swap(t, "..second", web.on(c.Host("web-2")))
	c.swap(t, "..third", web.on(c.Host("web-3")))
	p.Stop(t)

	file := func(name string) string { return "--manifests=" + filepath.Join(c.dir, name) }
	kubeProxy.Start(t, c.Node, append([]string{file("node.yaml"), file("web.yaml")}, c.mode.flags...)...).
		AwaitLog(t, `"Programmed"`, "IPv4", "changed=false")
	c.swap(t, "..fourth", web.on(c.Host("web-4")))
	c.swap(t, "..fifth", web.on(c.Host("web-1")))
}

// mount writes a version of a volume and swaps the link to it.
func (c *cluster) mount(t *testing.T, version string, a app) {
	t.Helper()
	dir, next := filepath.Join(c.dir, version), filepath.Join(c.dir, "..data_tmp")
	for _, step := range []error{
		os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(dir, a.name+".yaml"), a.yaml(t), 0o600),
		os.Symlink(version, next),
		os.Rename(next, filepath.Join(c.dir, "..data")),
	} {
		kit.Need(t, step == nil, "%v", step)
	}
}

// swap mounts a version of a and requires that it is in force.
func (c *cluster) swap(t *testing.T, version string, a app) {
	t.Helper()
	c.mount(t, version, a)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], a))
}

// TestRendered checks that render prints what the proxy installs: nft accepts it, and
// connections have the same results.
func TestRendered(t *testing.T) {
	t.Parallel()
	nftcommand.NeedTables(t)
	c := newCluster(t, defaultMode())
	c.withoutBPF(t) // there is no proxy
	apps := c.matrix()
	c.save(t, apps...)
	cmd := kubeProxy.Command(append([]string{"render", "--proxy-mode=nftables", "--manifests=" + c.dir}, c.mode.flags...)...)
	var text bytes.Buffer
	cmd.Stdout = &text
	out, err := program.Run(t, c.Node, cmd)
	kit.Need(t, err == nil, "render: %v\n%s", err, out)
	nft(t, c.Node, text.String(), "-c")
	left := strings.TrimSpace(nft(t, c.Node, "list ruleset\n"))
	kit.Need(t, left == "", "checking installed something:\n%s", left)
	nft(t, c.Node, text.String())
	want := c.want(t)
	c.check(t, want, c.cells(c.clientHosts(), apps...))

	// A proxy that finds these rules takes them over without an interruption.
	open := c.converse(t, "tcp", apps[0], 1)
	c.start(t)
	open.checkSameServer(t)
}

// readOnlyRoot is a script that starts its arguments where the root is read-only, and the
// settings of the kernel with it.
const readOnlyRoot = "mount -t tmpfs run /run && mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && " +
	"mount -o remount,bind,ro / && if touch /root/x 2>/dev/null; then exit 9; fi && exec \"$@\""

// A proxy serves as it does elsewhere where its root is read-only, as the manifests
// in deploy have it, and behind a filter of system calls like containerd's.
func TestConfined(t *testing.T) {
	self, err := os.Executable()
	kit.Must(t, err)
	for name, prefix := range map[string][]string{
		"read-only root": {"unshare", "--mount", "sh", "-c", readOnlyRoot, "sh"},
		"seccomp":        {"env", confine + "=1", self},
	} {
		for _, mode := range []string{"nftables", "iptables-nft"} {
			t.Run(name+", "+mode, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, switchableModes()[mode])
				c.withoutBPF(t)
				web := app{name: "web", number: 10}.on(c.webs()...)
				c.save(t, web)
				c.prepare(t)
				p := c.startBehind(t, prefix...)
				c.check(t, c.want(t), c.cells(c.clientHosts()[:1], web))
				web = web.on(c.webs()[:1]...)
				c.awaitProgrammed(t, web)
				c.check(t, c.want(t), c.cells(c.clientHosts()[:1], web))
				if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid())); name == "seccomp" && (err != nil || !strings.Contains(string(text), "Seccomp:\t2\n")) {
					t.Errorf("the proxy has no filter: %v", err)
				}
			})
		}
	}
}

// prepare makes the settings of the node, as the privileged part of the manifests does.
func (c *cluster) prepare(t *testing.T) {
	t.Helper()
	out, err := program.Run(t, c.Node, c.command(append([]string{"--init-only"}, c.mode.flags...)...))
	kit.Need(t, err == nil, "--init-only: %v\n%s", err, out)
}

// startBehind starts the proxy by another program, and waits until all is programmed.
func (c *cluster) startBehind(t *testing.T, prefix ...string) *program.Proxy {
	t.Helper()
	p := c.launchBehind(t, prefix...)
	c.awaitProgrammed(t)
	return p
}

// launchBehind starts the proxy by another program.
func (c *cluster) launchBehind(t *testing.T, prefix ...string) *program.Proxy {
	t.Helper()
	cmd := c.command(append([]string{"--manifests=" + c.dir, "--iptables-min-sync-period=10ms"}, c.mode.flags...)...)
	path, err := exec.LookPath(prefix[0])
	kit.Must(t, err)
	cmd.Args = slices.Concat(prefix, []string{cmd.Path}, cmd.Args[1:])
	cmd.Path = path
	return program.Start(t, c.Node, cmd)
}

// confine is the variable for which this program replaces itself by its arguments, behind a
// filter.
const confine = "KUBEPROXY_TEST_CONFINE"

// denied are system calls that the default profile of containerd has fail, for a
// process without capabilities beyond those of the network.
var denied = []uint32{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_BPF, unix.SYS_CLOCK_SETTIME, unix.SYS_DELETE_MODULE, unix.SYS_FANOTIFY_INIT,
	unix.SYS_FINIT_MODULE, unix.SYS_INIT_MODULE, unix.SYS_IO_URING_SETUP, unix.SYS_KCMP, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_KEXEC_LOAD,
	unix.SYS_KEYCTL, unix.SYS_MOUNT, unix.SYS_MOVE_PAGES, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PERF_EVENT_OPEN, unix.SYS_PIVOT_ROOT,
	unix.SYS_PTRACE, unix.SYS_QUOTACTL, unix.SYS_REBOOT, unix.SYS_REQUEST_KEY, unix.SYS_SETNS, unix.SYS_SWAPOFF, unix.SYS_SWAPON,
	unix.SYS_SYSLOG, unix.SYS_UMOUNT2, unix.SYS_UNSHARE, unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
}

// confined replaces this program, if it is to be.
func confined() {
	if os.Getenv(confine) == "" {
		return
	}
	err := filterCalls(denied)
	if err == nil {
		os.Unsetenv(confine)
		err = unix.Exec(os.Args[1], os.Args[1:], os.Environ())
	}
	fmt.Fprintf(os.Stderr, "%s: %v\n", confine, err)
	os.Exit(1)
}

// filterCalls has system calls of this thread, and of what it executes, fail with EPERM.
func filterCalls(numbers []uint32) error {
	runtime.LockOSThread()
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the call's number is at 0
	for i, n := range numbers {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(len(numbers) - i), K: n})
	}
	filter = append(filter,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if e != 0 {
		return fmt.Errorf("set the filter: %w", e)
	}
	return nil
}

// neededRights are the capabilities of each mode, as in docs/modes.md.
func neededRights() map[string]struct {
	mode   mode
	rights []string
} {
	all := map[string]struct {
		mode   mode
		rights []string
	}{}
	for name, m := range switchableModes() {
		rights := []string{"net_admin"}
		if m.ipvs || m.iptables == "legacy" {
			rights = append(rights, "net_raw")
		}
		all[name] = struct {
			mode   mode
			rights []string
		}{m, rights}
	}
	for _, v := range program.IPTablesVariants {
		with := all["iptables-"+v]
		with.mode = inUserspace(v)
		all["userspace-"+v] = with
	}
	return all
}

// TestRights runs each mode as the chart does: with these capabilities and no others,
// behind a filter of system calls, with a read-only root. Without one of them, it does
// not work.
func TestRights(t *testing.T) {
	for name, tc := range neededRights() {
		if !tc.mode.ipvs {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				worksWithRights(t, tc.mode, tc.rights)
			})
		}
	}
}

// TestIPVSRights is TestRights for the mode that not every kernel has.
func TestIPVSRights(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	needed := neededRights()["ipvs"]
	worksWithRights(t, needed.mode, needed.rights)
}

// worksWithRights checks that a mode needs each of some capabilities, and no others.
func worksWithRights(t *testing.T, m mode, rights []string) {
	self, err := os.Executable()
	kit.Must(t, err)
	c := newCluster(t, m)
	c.withoutBPF(t)
	web := app{name: "web", number: 10, plain: true}.on(c.webs()...)
	c.save(t, web)
	c.prepare(t)
	for _, right := range rights {
		rest := slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == right })
		c.failsBehind(t, right, contained(self, rest)...)
	}
	p := c.startBehind(t, contained(self, rights)...)
	c.check(t, c.want(t), c.cells([]*netlab.Host{c.Host("customer")}, web))
	p.Stop(t)
}

// contained are the words that start a program as in a container of the chart with these
// rights.
func contained(self string, rights []string) []string {
	set := "-all"
	for _, r := range rights {
		set += ",+" + r
	}
	return []string{"unshare", "--mount", "sh", "-c", readOnlyRoot, "sh", "env", confine + "=1", self,
		"/usr/bin/setpriv", "--inh-caps=" + set, "--bounding-set=" + set, "--no-new-privs"}
}

// failsBehind starts the proxy by another program, and wants it to end with an error that
// names the missing right.
func (c *cluster) failsBehind(t *testing.T, missing string, prefix ...string) {
	t.Helper()
	p := c.launchBehind(t, prefix...)
	ended := kit.Soon(func() bool { return p.Ended() || p.Log.Has("CAP_"+strings.ToUpper(missing)) })
	kit.Check(t, ended && p.Log.Has("CAP_"+strings.ToUpper(missing)), "without %s the proxy says\n%s", missing, p.Log)
	p.Kill()
}

// The secrets of a node, in every form that a file may hold.
const (
	secretToken = "s3cr3t-of-the-service-account-2718281828"
	secretKey   = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIGxvbmdlbm91Z2hmb3JhbGluZW9mYWtleW9mdGVuLi4uLi4uLi4u\n-----END EC PRIVATE KEY-----\n"
	secretCert  = "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUbG9uZ2Vub3VnaGZvcmFsaW5lb2ZhY2VydGlmaWNhdGU\n-----END CERTIFICATE-----\n"
)

// secrets lists what an archive must not contain.
func secrets() []string {
	line := func(s string) string { return strings.Split(s, "\n")[1] }
	code := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	return []string{secretToken, line(secretKey), line(secretCert), code(secretKey)[:60], code(secretCert)[:60], code(secretToken)}
}

// writeKubeconfig writes one that has all the secrets, of an API server that nobody runs.
func writeKubeconfig(t *testing.T) string {
	t.Helper()
	code := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	text := `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users:
- {name: u, user: {token: "` + secretToken + `"}}
- {name: v, user: {client-key-data: "` + code(secretKey) + `", client-certificate-data: "` + code(secretCert) + `"}}
`
	path := filepath.Join(t.TempDir(), "kubeconfig")
	kit.WriteFile(t, path, text)
	return path
}

// TestSupportDump makes an archive on a node whose proxy runs, whose API server does not
// answer, and whose log has secrets.
func TestSupportDump(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.start(t, app{name: "web", number: 10}.on(c.webs()...))
	kubeconfig := writeKubeconfig(t)
	text := kit.ReadFile(t, kubeconfig)
	log := filepath.Join(t.TempDir(), "proxy.log")
	kit.WriteFile(t, log, "the first line of the log\n"+string(text)+secretKey+secretCert+"Authorization: Bearer "+secretToken+"\nthe last line of the log\n")
	path := filepath.Join(t.TempDir(), "dump.tar.gz")
	cmd := c.command(append([]string{"--manifests=" + c.dir, "--kubeconfig=" + kubeconfig, "--log-file=" + log}, c.mode.flags...)...)
	cmd.Args = append(slices.Insert(cmd.Args, 1, "support-dump", path), "--timeout=20s")
	said, err := program.Run(t, c.Node, cmd)
	kit.Need(t, cmd.ProcessState != nil, "%v", err)
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(said, "not collected: events.json;") {
		t.Errorf("exit %d, want 1 for Events alone: %s", code, said)
	}
	archive := kit.ReadFile(t, path)
	t.Logf("%d bytes\n%s", len(archive), said)
	checkArchive(t, archive, map[string]string{
		"version.txt": "cli.Build{", "config.yaml": "kind: KubeProxyConfiguration", "configz.json": "clusterCIDR", "flagz.txt": "manifests=",
		"status.txt": "shop/web", "services.json": `"name":`, "metrics.txt": "kubeproxy_", "rules.txt": "table ip kube-services", "plan.txt": "Nothing differs.",
		"log.txt": "the last line of the log", "doctor.txt": "", "conntrack.txt": "nf_conntrack", "nft.txt": "kube-services", "addresses.txt": "192.0.2.10",
		"CONTENTS.txt": "events.json",
	})
}

// checkArchive wants a text in each file of an archive, and no secret in any.
func checkArchive(t *testing.T, archive []byte, want map[string]string) {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	kit.Must(t, err)
	found := map[string]bool{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		kit.Must(t, err)
		text, err := io.ReadAll(r)
		kit.Must(t, err)
		name := filepath.Base(h.Name)
		found[name] = true
		if !strings.Contains(string(text), want[name]) {
			t.Errorf("%s lacks %q:\n%.2000s", name, want[name], text)
		}
		if name == "CONTENTS.txt" {
			t.Logf("%s", text)
		}
		for _, s := range secrets() {
			kit.Check(t, !strings.Contains(string(text), s), "%s has the secret %s", name, s)
		}
	}
	for name := range want {
		kit.Check(t, found[name], "there is no %s", name)
	}
}
