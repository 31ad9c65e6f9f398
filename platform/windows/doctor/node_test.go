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
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/platform/windows/hns"
	"kubeproxy/platform/windows/proc"
	"kubeproxy/platform/windows/scm"
	"kubeproxy/test/kit"
)

// fakeWindows has what a test says.
type fakeWindows struct {
	state     ServiceState
	listening []proc.Listener
	processes []Process
	services  []scm.Status
	writers   map[string][]string // by path, which others lack
}

func (w *fakeWindows) Service(string) (ServiceState, error) { return w.state, nil }
func (w *fakeWindows) Listeners() ([]proc.Listener, error)  { return w.listening, nil }
func (w *fakeWindows) Processes(string) ([]Process, error)  { return w.processes, nil }
func (w *fakeWindows) Services() ([]scm.Status, error)      { return w.services, nil }
func (w *fakeWindows) Writers(path string) ([]string, error) {
	if all, ok := w.writers[path]; ok {
		return all, nil
	}
	return nil, fs.ErrNotExist
}
func (w *fakeWindows) Describe(pid uint32) string {
	if pid == 42 {
		return `process 42 (C:\k\kube-proxy.exe)`
	}
	return fmt.Sprintf("process %d", pid)
}

var overlay = hns.Network{ID: "1", Name: "vxlan0", Kind: hns.Overlay, Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}

// newNode returns a node on which all is well.
func newNode() (*Node, *hns.Listing, *fakeWindows) {
	l := &hns.Listing{Version: hns.Version{Major: 15, Minor: 5}, Networks: []hns.Network{overlay}}
	w := &fakeWindows{state: Running}
	return &Node{
		Options: hns.Options{DSR: true}, Windows: w, Program: `C:\new\kube-proxy.exe`, Folder: `C:\data`, Files: []string{`C:\data\state`},
		List:      func(context.Context, hns.ObjectKinds) (hns.Listing, error) { return *l, nil },
		PortsLeft: func(context.Context, service.Address) (bool, error) { return true, nil },
		Holder:    func(context.Context) (lease.Identity, error) { return lease.Identity{}, errors.New("nobody") },
		Services:  func(context.Context) (*service.Snapshot, error) { return nil, nil },
	}, l, w
}

// run runs all checks and returns a line for each Finding: topic, subject and fix. It
// joins the checks that could not look.
func run(t *testing.T, n *Node) (found []string, failed string) {
	t.Helper()
	r := doctor.Runner{Checks: n.Checks(), Timeout: time.Minute, Patience: time.Minute}
	results, findings := r.Run(t.Context())
	for _, f := range findings {
		found = append(found, strings.Join([]string{string(f.Topic), f.Subject, f.Fix}, " | "))
		kit.Check(t, f.What != "" && f.Fix+f.Advice != "", "says nothing: %+v", f)
		kit.Check(t, !kit.MayHarm(f.Fix), "a command that may harm is a fix: %+v", f)
		if _, command, is := strings.Cut(f.Advice, ": taskkill"); is {
			found[len(found)-1] += "advice: taskkill" + command
		} else if _, command, is := strings.Cut(f.Advice, ", then taskkill"); is {
			found[len(found)-1] += "advice: taskkill" + command
		}
	}
	for _, c := range results {
		if c.State == doctor.Failed {
			failed += c.Name + ": " + c.Note + "\n"
		}
		if c.State != doctor.Found && c.Note == "" {
			kit.Check(t, c.Name == "ports of the proxy", "%s does not say what it looked at", c.Name)
		}
	}
	return found, failed
}

// with returns Services with one port.
func with(p service.Port) func(context.Context) (*service.Snapshot, error) {
	return func(context.Context) (*service.Snapshot, error) {
		return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{&p}), nil
	}
}

func failing(code uint32) func(context.Context, hns.ObjectKinds) (hns.Listing, error) {
	return func(context.Context, hns.ObjectKinds) (hns.Listing, error) {
		return hns.Listing{}, &hns.Error{Op: "list", Code: code}
	}
}

func balancers(n int) []hns.LoadBalancer {
	all := make([]hns.LoadBalancer, n)
	for i := range all {
		all[i].Address = service.Address{Family: service.IPv4, Protocol: service.TCP, Port: uint16(i + 1)}
	}
	return all
}

// faultCase is one fault, and what is found of it.
type faultCase struct {
	fault func(*Node, *hns.Listing, *fakeWindows)
	want  []string
}

func addrs(a string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(a)} }

// endpoint returns one of a pod, which is ready for direct server return.
func endpoint(name, addr, network string) hns.Endpoint {
	return hns.Endpoint{Name: name, Network: network, Addrs: addrs(addr), HasNamespace: true, LoopbackDSR: true}
}

// hnsFaults are those of HNS and its configuration.
func hnsFaults() map[string]faultCase {
	return map[string]faultCase{
		"all is well": {func(*Node, *hns.Listing, *fakeWindows) {}, nil},
		"HNS stopped": {func(n *Node, _ *hns.Listing, _ *fakeWindows) { n.List = failing(0x426) }, []string{`hns |  | powershell -Command "Start-Service hns"`}},
		"no HNS":      {func(n *Node, _ *hns.Listing, _ *fakeWindows) { n.List = failing(0x424) }, []string{`hns |  | powershell -Command "Install-WindowsFeature Containers"`}},
		"an old HNS, DSR": {func(n *Node, l *hns.Listing, _ *fakeWindows) {
			l.Version, l.Networks[0].Kind = hns.Version{Major: 10, Minor: 1}, hns.L2Bridge
		}, []string{"hns-version | direct server return | "}},
		"an old HNS, overlay": {func(n *Node, l *hns.Listing, _ *fakeWindows) {
			l.Version, n.Options.DSR = hns.Version{Major: 9, Minor: 1}, false
		}, []string{"hns-version | remote subnets | "}},
		"no affinity": {func(n *Node, l *hns.Listing, _ *fakeWindows) {
			l.Version, n.Services = hns.Version{Major: 11, Minor: 10}, with(service.Port{Affinity: time.Hour})
		}, []string{"hns-version | session affinity | "}},
		"no dual stack": {func(n *Node, l *hns.Listing, _ *fakeWindows) {
			l.Version, l.Networks[0].Kind, n.Services = hns.Version{Major: 10, Minor: 3}, hns.L2Bridge, with(service.Port{Family: service.IPv6})
		}, []string{"hns-version | dual stack | "}},
		"no network": {func(_ *Node, l *hns.Listing, _ *fakeWindows) { l.Networks = nil }, []string{"hns-network |  | "}},
		"another adapter": {func(n *Node, l *hns.Listing, _ *fakeWindows) {
			l.Networks[0].Provider = netip.MustParseAddr("10.7.0.25")
			n.Services = func(context.Context) (*service.Snapshot, error) {
				return service.New(1, &service.Node{Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.10")}}, nil), nil
			}
		}, []string{"hns-network | vxlan0 | "}},
		"source VIP":  {func(n *Node, _ *hns.Listing, _ *fakeWindows) { n.Options.SourceVIP = netip.MustParseAddr("192.0.2.1") }, []string{"source-vip | 192.0.2.1 | "}},
		"no VFP":      {func(_ *Node, _ *hns.Listing, w *fakeWindows) { w.state = Missing }, []string{`vfp-extension |  | powershell -Command "Install-WindowsFeature Containers"`}},
		"VFP stopped": {func(_ *Node, _ *hns.Listing, w *fakeWindows) { w.state = Stopped }, []string{"vfp-extension |  | sc.exe start VfpExt"}},
		"DSR off":     {func(n *Node, _ *hns.Listing, _ *fakeWindows) { n.Options.DSR = false }, nil},
		"DSR off, many Services": {func(n *Node, l *hns.Listing, _ *fakeWindows) {
			n.Options.DSR, l.LoadBalancers = false, balancers(128)
		}, []string{"dsr-off |  | "}},
		"DSR, pods not ready for it": {func(_ *Node, l *hns.Listing, _ *fakeWindows) {
			l.Endpoints = []hns.Endpoint{{Name: "a", Network: "1", HasNamespace: true, LoopbackDSR: true}, {Name: "b", Network: "1", HasNamespace: true}}
		}, []string{"dsr-loopback |  | "}},
		"DSR, pods ready for it": {func(_ *Node, l *hns.Listing, _ *fakeWindows) {
			l.Endpoints = []hns.Endpoint{{Name: "a", Network: "1", HasNamespace: true, LoopbackDSR: true}, {Name: "VIPEndpoint", Network: "1", HasNamespace: true}, {Name: "Calico_ep", Network: "1", HasNamespace: true}, {Name: "c", Network: "1"}}
		}, nil},
		"pods in nat": {func(_ *Node, l *hns.Listing, _ *fakeWindows) {
			l.Networks = append(l.Networks, hns.Network{ID: "2", Name: "nat", Kind: "NAT"})
			l.Endpoints = []hns.Endpoint{endpoint("a", "10.244.1.7", "1"), {Name: "b", Network: "2", Addrs: addrs("172.25.74.145"), HasNamespace: true}, endpoint("c", "172.25.74.146", "2")}
			l.Endpoints = append(l.Endpoints, hns.Endpoint{Network: "3", Remote: true, HasNamespace: true}, hns.Endpoint{Name: "of no pod", Network: "3"})
		}, []string{"stray-pods | nat | "}},
		"another VIP than Calico's": {func(_ *Node, l *hns.Listing, _ *fakeWindows) {
			l.Endpoints = []hns.Endpoint{endpoint("Calico_ep", "10.244.1.66", "1"), {Name: "kube-proxy-source-vip", Network: "1", Addrs: addrs("10.244.1.254")}}
		}, []string{"source-vip | Calico_ep | "}},
		"Calico's VIP": {func(n *Node, l *hns.Listing, _ *fakeWindows) {
			l.Endpoints = []hns.Endpoint{endpoint("Calico_ep", "10.244.1.66", "1"), {Name: "kube-proxy-source-vip", Network: "1", Addrs: addrs("10.244.1.254")}}
			n.Options.SourceVIP = netip.MustParseAddr("10.244.1.66")
		}, nil},
		"a pod with the VIP": {func(_ *Node, l *hns.Listing, _ *fakeWindows) {
			l.Endpoints = []hns.Endpoint{{Name: "kube-proxy-source-vip", Network: "1", Addrs: addrs("10.244.1.2")}, endpoint("a", "10.244.1.2", "1")}
		}, []string{"source-vip | 10.244.1.2 | "}},
	}
}

// portFaults are those of ports and processes.
func portFaults() map[string]faultCase {
	unknown := func(context.Context, service.Address) (bool, error) { return false, errors.New("unknown") }
	return map[string]faultCase{
		"no ports": {func(n *Node, _ *hns.Listing, _ *fakeWindows) {
			n.PortsLeft = func(_ context.Context, k service.Address) (bool, error) {
				return k.Family == service.IPv4 || k.Protocol == service.TCP, nil
			}
		}, []string{"dynamic-ports | IPv6/udp | netsh int ipv6 set dynamicportrange udp start=32768 num=32767"}},
		"ports, counted": {func(n *Node, l *hns.Listing, _ *fakeWindows) { n.PortsLeft, l.LoadBalancers = unknown, balancers(200) }, nil},
		"no ports, counted": {func(n *Node, l *hns.Listing, _ *fakeWindows) { n.PortsLeft, l.LoadBalancers = unknown, balancers(231) },
			[]string{"dynamic-ports | IPv4/tcp | netsh int ipv4 set dynamicportrange tcp start=32768 num=32767"}},
		"another proxy": {func(_ *Node, _ *hns.Listing, w *fakeWindows) { w.processes = []Process{{PID: 7}, {PID: 8}} }, []string{"other-proxy | other-proxy | advice: taskkill /F /PID 7 /PID 8"}},
		"ours": {func(n *Node, _ *hns.Listing, w *fakeWindows) {
			w.processes, n.Holder = []Process{{PID: 7}}, func(context.Context) (lease.Identity, error) { return lease.Identity{OwnPID: 7}, nil }
		}, nil},
		"one that answers": {func(n *Node, _ *hns.Listing, w *fakeWindows) { w.processes, n.Answered = []Process{{PID: 7}}, true }, nil},
		"one that answers, not the holder": {func(n *Node, _ *hns.Listing, w *fakeWindows) {
			w.processes, n.Answered, n.AnsweredAt = []Process{{PID: 7}, {PID: 8}}, true, netip.MustParseAddrPort("127.0.0.1:10249")
			w.listening = []proc.Listener{{Addr: netip.MustParseAddrPort("127.0.0.1:10249"), PID: 7}}
			n.Holder = func(context.Context) (lease.Identity, error) { return lease.Identity{OwnPID: 8}, nil }
		}, []string{"other-proxy | other-proxy | advice: taskkill /F /PID 8"}},
		"a child of RKE2": {func(n *Node, _ *hns.Listing, w *fakeWindows) {
			n.BeforeStart = true
			w.processes = []Process{{PID: 7, Above: []Parent{{6, "rke2.exe"}}}}
		}, []string{"other-proxy | other-proxy | "}},
		"one that hangs": {func(_ *Node, _ *hns.Listing, w *fakeWindows) { w.processes = []Process{{PID: 7}} }, nil},
		"a service of nssm": {func(n *Node, _ *hns.Listing, w *fakeWindows) {
			n.BeforeStart = true
			w.processes = []Process{{PID: 7, Above: []Parent{{6, "nssm.exe"}, {5, "services.exe"}}}}
			w.services = []scm.Status{{Name: "kube-proxy", PID: 6, Command: `C:\k\nssm.exe`, StartType: "automatic"}}
		}, []string{"other-proxy | other-proxy | "}},
		"our service": {func(n *Node, _ *hns.Listing, w *fakeWindows) {
			w.processes, n.Answered = []Process{{PID: 7, Above: []Parent{{5, "services.exe"}}}}, true
			w.services = []scm.Status{{Name: "kube-proxy", PID: 7, Command: `"C:\old\kube-proxy.exe" --config x`}, {Name: "kp2", Command: `C:\new\KUBE-PROXY.EXE`}, {Name: "kubeproxy", StartType: "disabled"}, {Name: "dns"}}
		}, nil},
		"a service that starts one": {func(_ *Node, _ *hns.Listing, w *fakeWindows) {
			w.services = []scm.Status{{Name: "p", Command: `C:\k\nssm.exe C:\k\kube-proxy.exe --v=4`}, {Name: "Kubeproxy", StartType: "manual", Command: `C:\k\nssm.exe`}}
		}, []string{`other-proxy | Kubeproxy | `, `other-proxy | p | `}},
		"files that others may change": {func(_ *Node, _ *hns.Listing, w *fakeWindows) {
			w.services = []scm.Status{{Name: "kp", StartType: "disabled", Command: `"C:\k 2\kube-proxy.exe" --x`}}
			w.writers = map[string][]string{`C:\data`: nil, `C:\data\state`: {"S-1-5-7"}, `C:\k 2`: {`BUILTIN\Users`, "Everyone"}}
		}, []string{`writable-files | C:\data\state | icacls "C:\data\state" /inheritance:r /grant:r "*S-1-5-18:F" "*S-1-5-32-544:F" "*S-1-5-7:RX"`,
			`writable-files | C:\k 2 | icacls "C:\k 2" /inheritance:r /grant:r "*S-1-5-18:(OI)(CI)F" "*S-1-5-32-544:(OI)(CI)F" "BUILTIN\Users:(OI)(CI)RX" "Everyone:(OI)(CI)RX"`}},
		"a port taken": {func(n *Node, _ *hns.Listing, w *fakeWindows) {
			n.Servers = []doctor.Server{{Name: "health", Flag: "healthz-bind-address", Addr: netip.MustParseAddrPort("0.0.0.0:10256")}}
			w.listening = []proc.Listener{{Addr: netip.MustParseAddrPort("[::]:10256"), PID: 9}}
		}, []string{"port-taken | 0.0.0.0:10256 | advice: taskkill /F /PID 9"}},
		"a port of a proxy": {func(n *Node, _ *hns.Listing, w *fakeWindows) {
			n.Servers = []doctor.Server{{Name: "health", Flag: "healthz-bind-address", Addr: netip.MustParseAddrPort("0.0.0.0:10256")}}
			w.listening = []proc.Listener{{Addr: netip.MustParseAddrPort("[::]:10256"), PID: 42}}
		}, nil},
		"a NodePort taken": {func(n *Node, _ *hns.Listing, w *fakeWindows) {
			n.Services = with(service.Port{Name: service.PortName{Protocol: service.TCP}, Frontends: []service.Frontend{{Kind: service.NodePort, Port: 30080}}})
			w.listening = []proc.Listener{{Addr: netip.MustParseAddrPort("127.0.0.1:30080"), PID: 8}, {Addr: netip.MustParseAddrPort("0.0.0.0:30080"), PID: 9}}
		}, []string{"nodeport-hidden | 30080/tcp | advice: taskkill /F /PID 9"}},
	}
}

// TestChecks makes one fault in each case. Every other check finds nothing.
func TestChecks(t *testing.T) {
	all := hnsFaults()
	maps.Copy(all, portFaults())
	for situation, test := range all {
		t.Run(situation, func(t *testing.T) {
			n, l, w := newNode()
			l.Networks = []hns.Network{overlay}
			test.fault(n, l, w)
			found, failed := run(t, n)
			kit.Check(t, strings.Join(found, "\n") == strings.Join(test.want, "\n") && failed == "",
				"found\n%s\n%swant\n%s", strings.Join(found, "\n"), failed, strings.Join(test.want, "\n"))
		})
	}
	n, _, _ := newNode()
	n.List = failing(0x5)
	if found, failed := run(t, n); len(found) > 0 || !strings.Contains(failed, "HNS: list: access is denied") {
		t.Errorf("without rights: %s, %s; want a check that could not look", found, failed)
	}
}

// TestWay has the ways of docs/windows.md to start kube-proxy. Each is a heading there.
func TestWay(t *testing.T) {
	text := kit.ReadFile(t, "../../../docs/windows.md")
	headings := strings.ReplaceAll(strings.ToLower(string(text)), " ", "-")
	for _, test := range []struct {
		parent  string
		service *scm.Status
		want    string
	}{
		{"nssm.exe", &scm.Status{Name: "kube-proxy", Command: `C:\k\nssm.exe`}, byNSSM},
		{"powershell.exe", &scm.Status{Name: "kube-proxy", Command: `C:\k\nssm.exe powershell.exe kube-proxy-service.ps1`}, byNSSM},
		{"", &scm.Status{Name: "kube-proxy", Command: `"C:\Program Files\nssm64.exe"`}, byNSSM},
		{"nssm.exe", &scm.Status{Name: "kubeproxy", Command: `C:\k\nssm.exe`}, byNSSM},
		{"services.exe", &scm.Status{Name: "kube-proxy", Command: `C:\k\kube-proxy.exe --windows-service`}, byService},
		{"", &scm.Status{Name: "kube-proxy", Command: `"C:\nssm\kube-proxy.exe"`}, byService},
		{"powershell.exe", &scm.Status{Name: "Kubeproxy", Command: `C:\k\nssm.exe`}, byAKS},
		{"", &scm.Status{Name: "p", Command: `C:\k\nssm.exe powershell.exe C:\k\kubeproxystart.ps1`}, byAKS},
		{"PowerShell.EXE", nil, byScript},
		{"rke2.exe", &scm.Status{Name: "rke2", Command: `C:\usr\local\bin\rke2.exe agent service`}, byRKE2},
		{"rke2.exe", nil, byRKE2},
		{"containerd-shim-runhcs-v1.exe", nil, byPod},
		{"", nil, byPod},
	} {
		kit.Equal(t, way(test.parent, test.service), test.want, "parent %q, %+v", test.parent, test.service)
		kit.Check(t, strings.Contains(headings, "\n###-"+test.want+"\n"), "%s is no heading", test.want)
	}
}

// TestIPAM has configurations of network plugins, and source VIPs.
func TestIPAM(t *testing.T) {
	const hostLocal = `{"name": "net", "type": "sdnoverlay", "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"`
	for name, test := range map[string]struct {
		file, text, vip string
		want            string
	}{
		"the first":              {"a.conf", hostLocal + `}}`, "10.244.1.2", "a.conf"},
		"the last":               {"a.conf", hostLocal + `}}`, "10.244.1.254", ""},
		"the last but a pod":     {"a.conf", hostLocal + `}}`, "10.244.1.253", ""},
		"below the range":        {"a.conf", hostLocal + `, "rangeStart": "10.244.1.10"}}`, "10.244.1.2", ""},
		"above the range":        {"a.conf", hostLocal + `, "rangeEnd": "10.244.1.199"}}`, "10.244.1.200", ""},
		"in the range":           {"a.conf", hostLocal + `, "rangeStart": "10.244.1.2", "rangeEnd": "10.244.1.199"}}`, "10.244.1.2", "a.conf"},
		"in a list":              {"a.conflist", `{"name": "net", "plugins": [{"type": "win-overlay", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]]}}, {"type": "x"}]}`, "10.244.1.2", "a.conflist"},
		"flannel":                {"a.json", `{"name": "net", "type": "flannel", "delegate": {"type": "win-overlay"}}`, "10.244.1.2", "a.json"},
		"given out, so reserved": {"a.conf", hostLocal + `}}`, "10.244.1.9", ""},
		"another IPAM":           {"a.conf", `{"type": "calico", "ipam": {"type": "calico-ipam", "subnet": "usePodCidr"}}`, "10.244.1.2", ""},
		"not the first file":     {"c.conf", hostLocal + `}}`, "10.244.1.2", ""},
		"no configuration":       {"a.txt", hostLocal + `}}`, "10.244.1.2", ""},
		"null":                   {"a.conf", `null`, "10.244.1.2", ""},
	} {
		n, l, _ := newNode()
		dir, vip := t.TempDir(), netip.MustParseAddr(test.vip)
		n.CNI = CNI{Folders: []string{filepath.Join(dir, "missing"), dir}, Leases: filepath.Join(dir, "leases")}
		l.Endpoints = []hns.Endpoint{{Name: "vip", Network: "1", Addrs: []netip.Addr{vip}}, endpoint("a", "10.244.1.254", "1")}
		if test.vip == "10.244.1.254" {
			l.Endpoints = l.Endpoints[:1]
		}
		kit.Must(t, os.MkdirAll(filepath.Join(dir, "leases", "net"), 0o700))
		for path, text := range map[string]string{test.file: test.text, "b.conf": `{"type": "win-bridge"}`, "leases/net/10.244.1.9": ""} {
			kit.WriteFile(t, filepath.Join(dir, path), text)
		}
		got := ""
		for _, f := range n.alsoVIP(*l, overlay, vip) {
			got += filepath.Base(f.Subject)
		}
		kit.Check(t, got == test.want, "%s: found %q, want %q", name, got, test.want)
	}
}
