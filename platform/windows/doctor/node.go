// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor has checks of a Windows node for common/doctor.
//
// What HNS and Windows list, and the options of the backend, go in; checks come out.
// Decisions use functions of the backend where it has them. They are built and tested on
// any system. Files ending in _windows.go only read.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"

	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/platform/windows/hns"
	"kubeproxy/platform/windows/proc"
	"kubeproxy/platform/windows/scm"
)

// Node is what the checks read.
type Node struct {
	Options hns.Options
	// List and PortsLeft are those of hns.Driver.
	List      func(context.Context, hns.ObjectKinds) (hns.Listing, error)
	PortsLeft func(context.Context, service.Address) (bool, error)
	Windows   Windows
	CNI       CNI
	// Program is the path of this program. Folder and Files are what the proxy writes to.
	Program, Folder string
	Files           []string
	// Servers are those of the proxy.
	Servers []doctor.Server
	// Holder returns the proxy that programs the node, see lease.QueryHolder.
	Holder func(context.Context) (lease.Identity, error)
	// Answered is whether a proxy of this kind runs and answered, and AnsweredAt where, if known.
	Answered   bool
	AnsweredAt netip.AddrPort
	// BeforeStart is whether the findings are for a start.
	BeforeStart bool
	// Services returns the Services that are to be served, nil if none are known.
	Services func(context.Context) (*service.Snapshot, error)

	once    sync.Once
	listing hns.Listing
	err     error
}

// Windows is what the system lists.
type Windows interface {
	// Service returns the state of a service.
	Service(name string) (ServiceState, error)
	// Listeners lists the TCP listeners. Describe names their processes.
	Listeners() ([]proc.Listener, error)
	Describe(pid uint32) string
	// Processes returns the processes of this program's name, without this one.
	Processes(name string) ([]Process, error)
	// Services lists all services. The command of one of nssm is followed by the program that nssm runs.
	Services() ([]scm.Status, error)
	// Writers names who may change a file, see files.Writers.
	Writers(path string) ([]string, error)
}

// Process is a process and those that started it, the nearest first, as far as they run.
type Process struct {
	PID   uint32
	Above []Parent
}

// Parent is a process above another one. Name is that of its program.
type Parent struct {
	PID  uint32
	Name string
}

// ServiceState is the state of a service of Windows.
type ServiceState string

// The states.
const (
	Running ServiceState = "running"
	Stopped ServiceState = "stopped"
	Missing ServiceState = "missing"
)

// Checks returns all checks of the node.
func (n *Node) Checks() []doctor.Check {
	return []doctor.Check{
		{Name: "HNS", Look: n.service},
		{Name: "HNS version", Look: n.version},
		{Name: "network", Look: n.network},
		{Name: "source VIP", Look: n.sourceVIP},
		{Name: "VFP extension", Look: n.extension},
		{Name: "direct server return", Look: n.directReturn},
		{Name: "dynamic ports", Look: n.dynamicPorts},
		{Name: "other proxies", Look: n.otherProxies},
		{Name: "files of the proxy", Look: n.writableFiles},
		{Name: "ports of the proxy", Look: n.takenPorts},
		{Name: "NodePorts and listeners", Look: n.hiddenListeners},
	}
}

// held returns what HNS has. It is asked once.
func (n *Node) held(ctx context.Context) (hns.Listing, error) {
	n.once.Do(func() { n.listing, n.err = n.List(ctx, hns.All) })
	return n.listing, n.err
}

// withHNS skips a check while HNS does not answer, which the first check reports.
func (n *Node) withHNS(ctx context.Context, look func(hns.Listing) (doctor.Seen, error)) (doctor.Seen, error) {
	l, err := n.held(ctx)
	if err != nil {
		return doctor.NothingToSee("HNS cannot be asked"), nil
	}
	return look(l)
}

// service checks that HNS answers.
func (n *Node) service(ctx context.Context) (doctor.Seen, error) {
	l, err := n.held(ctx)
	f := doctor.Finding{Topic: doctor.HNS, What: fmt.Sprint(err)}
	switch {
	case err == nil:
		return doctor.Seen{Note: fmt.Sprintf("networks: %d, endpoints: %d, load balancers: %d", len(l.Networks), len(l.Endpoints), len(l.LoadBalancers))}, nil
	case errors.Is(err, hns.ErrNotInstalled):
		f.Fix, f.Advice = `powershell -Command "Install-WindowsFeature Containers"`, "restart Windows after it"
	case errors.Is(err, hns.ErrNotRunning):
		f.Fix, f.Advice = `powershell -Command "Start-Service hns"`, "if it ends again, look at its entries in the event log"
	default:
		return doctor.Seen{}, err
	}
	return doctor.Seen{Findings: []doctor.Finding{f}}, nil
}

// takenPorts checks that the proxy's servers can listen, beside proxies that otherProxies reports.
func (n *Node) takenPorts(context.Context) (doctor.Seen, error) {
	if n.Answered {
		return doctor.NothingToSee("the running proxy has them; its conditions say what it lacks"), nil
	}
	found, err := n.Windows.Listeners()
	if err != nil {
		return doctor.Seen{}, err
	}
	return doctor.TakenPorts(n.Servers, func(at netip.AddrPort) (h doctor.Holder) {
		for _, l := range found {
			if who := n.Windows.Describe(l.PID); l.Keeps(at) && !strings.Contains(strings.ToLower(who), program) {
				return doctor.Holder{Name: who, Addr: l.Addr, End: end(l.PID)}
			}
		}
		return h
	}), nil
}

// end says how to end a program. That is advice, no Fix: somebody needs it.
func end(pid uint32) string {
	return fmt.Sprintf("end it, if nobody needs it: taskkill /F /PID %d", pid)
}

// hiddenListeners checks for programs whose port is a NodePort. HNS of Windows Server 2019 refuses
// the load balancer (kubernetes/community#8883), a newer one takes the program's clients.
func (n *Node) hiddenListeners(ctx context.Context) (doctor.Seen, error) {
	want, err := n.Services(ctx)
	if err != nil {
		return doctor.Seen{}, err
	}
	if want == nil {
		return doctor.NothingToSee("no Services are known"), nil
	}
	found, err := n.Windows.Listeners()
	if err != nil {
		return doctor.Seen{}, err
	}
	seen := doctor.Seen{Note: fmt.Sprintf("listeners: %d", len(found))}
	for p := range want.Ports(service.IPv4) {
		port := p.NodePort()
		for _, l := range found {
			if port == 0 || p.Name.Protocol != service.TCP || l.Addr.Addr().IsLoopback() || !l.Keeps(netip.AddrPortFrom(netip.IPv4Unspecified(), port)) {
				continue
			}
			seen.Findings = append(seen.Findings, doctor.Finding{Topic: doctor.NodePortHidden, Subject: fmt.Sprintf("%d/%s", port, p.Name.Protocol),
				What:   fmt.Sprintf("the NodePort %d/%s of Service %s/%s is the port of %s, which listens on %s", port, p.Name.Protocol, p.Name.Namespace, p.Name.Name, n.Windows.Describe(l.PID), l.Addr),
				Advice: "let the program listen on another port, or give the Service another NodePort, or " + end(l.PID)})
			break
		}
	}
	return seen, nil
}

// program is the name of the program of Kubernetes, and of this one. nssm runs programs as services.
const (
	program = "kube-proxy.exe"
	nssm    = "nssm"
)

// retiring is the document that says how to retire the other proxy. The part that follows is one of the ways below.
const retiring = "docs/windows.md#"

// The ways in which kube-proxy is started, as headings of the document.
const (
	byNSSM    = "a-service-of-nssm"
	byService = "a-service-of-its-own"
	byAKS     = "aks"
	byScript  = "a-script"
	byRKE2    = "rke2"
	byPod     = "a-daemonset"
)

// way returns how kube-proxy is started. parent is the name of the program that did so, empty if it is not known, and s
// the service that it belongs to, or nil. The table in the document has the sources.
func way(parent string, s *scm.Status) string {
	parent = strings.TrimSuffix(strings.ToLower(parent), ".exe")
	shell := slices.Contains([]string{"powershell", "pwsh", "cmd"}, parent)
	switch {
	case parent == byRKE2:
		return byRKE2
	case s == nil && shell:
		return byScript
	case s == nil:
		return byPod
	case strings.EqualFold(s.Name, "Kubeproxy") && parent != nssm,
		strings.Contains(strings.ToLower(s.Command), "kubeproxystart"):
		return byAKS
	case parent == nssm || shell || strings.HasPrefix(executable(s.Command), nssm):
		return byNSSM
	}
	return byService
}

// executable returns the program of a command line, in lower case and without its folder.
func executable(command string) string {
	path := programOf(command)
	return strings.ToLower(path[strings.LastIndexAny(path, `/\`)+1:])
}

// programOf returns the path of the program of a command line, whose quotes may lack.
func programOf(command string) string {
	if rest, quoted := strings.CutPrefix(command, `"`); quoted {
		path, _, _ := strings.Cut(rest, `"`)
		return path
	}
	if i := strings.Index(strings.ToLower(command), ".exe"); i >= 0 {
		return command[:i+len(".exe")]
	}
	return command
}

// otherProxies checks that at most one service proxy runs, and that no service starts another one.
func (n *Node) otherProxies(ctx context.Context) (doctor.Seen, error) {
	all, err := n.Windows.Processes(program)
	if err != nil {
		return doctor.Seen{}, err
	}
	services, err := n.Windows.Services()
	if err != nil {
		return doctor.Seen{}, err
	}
	holder, err := n.Holder(ctx)
	known, own := err == nil, n.asked()
	if known && own == 0 {
		own = ownPID(holder)
	}
	seen := doctor.Seen{Note: "none runs"}
	if known {
		seen.Note = fmt.Sprintf("one runs, %s", holder)
	}
	var others []Process
	busy := map[string]bool{} // services of the processes
	for _, p := range all {
		if s := serviceOf(p, services); s != nil {
			busy[s.Name] = true
		}
		switch {
		case own == p.PID:
		case !known && (n.Answered || !n.BeforeStart) && len(all) == 1:
			seen.Note = "one runs, " + n.Windows.Describe(p.PID)
		default:
			others = append(others, p)
		}
	}
	if len(others) > 0 {
		f := n.runningProxies(others, services)
		if !known {
			seen.Note = ""
		} else {
			f.What = fmt.Sprintf("%s programs this node; %s", holder, f.What)
		}
		seen.Findings = append(seen.Findings, f)
	}
	seen.Findings = append(seen.Findings, n.idleServices(services, busy)...)
	return seen, nil
}

// asked returns the process of the proxy that answered, 0 if unknown. It may have lost the lease since.
func (n *Node) asked() uint32 {
	found, _ := n.Windows.Listeners()
	for _, l := range found {
		if n.AnsweredAt.IsValid() && l.Keeps(n.AnsweredAt) {
			return l.PID
		}
	}
	return 0
}

// Hung describes the only process of a proxy, see doctor.Silent.
func (n *Node) Hung() (what, advice string, several bool) {
	all, err := n.Windows.Processes(program)
	if err != nil || len(all) != 1 {
		return "", "", len(all) > 1
	}
	return n.Windows.Describe(all[0].PID) + " runs", "read its log and restart it; if it is another kube-proxy that this program is to replace, kube-proxy doctor --before-start has the findings for that", false
}

// ownPID returns the process ID, of which Windows has one space.
func ownPID(i lease.Identity) uint32 {
	if i.PID > 0 {
		return uint32(i.PID)
	}
	return uint32(i.OwnPID)
}

// serviceOf returns the service that p belongs to, or nil.
func serviceOf(p Process, services []scm.Status) *scm.Status {
	for i := range services {
		s := &services[i]
		above := slices.ContainsFunc(p.Above, func(a Parent) bool { return a.PID == s.PID })
		if s.PID != 0 && namesProxy(s) && (above || s.PID == p.PID) {
			return s
		}
	}
	return nil
}

var proxyName = regexp.MustCompile(`(?i)kube-?proxy`)

func namesProxy(s *scm.Status) bool { return proxyName.MatchString(s.Name + " " + s.Command) }

// runningProxies describes proxies that run beside ours. One that something starts again is not to be killed.
func (n *Node) runningProxies(others []Process, services []scm.Status) doctor.Finding {
	f := doctor.Finding{Topic: doctor.OtherProxy, Subject: doctor.SubjectOtherProxy,
		Advice: "wait if a rolling update is under way, and see that it is no other command of this program; else retire it:"}
	var names, ways []string
	kill := "taskkill /F"
	restarted := false
	for _, p := range others {
		parent, name := "", n.Windows.Describe(p.PID)
		s := serviceOf(p, services)
		if s != nil {
			name += " of the service " + s.Name
		}
		if len(p.Above) > 0 {
			parent = p.Above[0].Name
			name += ", started by " + parent
		}
		w := way(parent, s)
		names, ways = append(names, name), append(ways, retiring+w)
		restarted = restarted || s != nil || w == byRKE2
		kill += fmt.Sprintf(" /PID %d", p.PID)
	}
	slices.Sort(ways)
	f.Advice += " " + strings.Join(slices.Compact(ways), ", ")
	if !restarted {
		f.Advice += ", then " + kill
	}
	f.What = "another service proxy runs on this node: " + strings.Join(names, "; ")
	return f
}

// idleServices finds services that can start another proxy.
func (n *Node) idleServices(services []scm.Status, busy map[string]bool) []doctor.Finding {
	var all []doctor.Finding
	for i := range services {
		s := &services[i]
		if !namesProxy(s) || busy[s.Name] || s.StartType == "disabled" || strings.EqualFold(programOf(s.Command), n.Program) {
			continue
		}
		all = append(all, doctor.Finding{Topic: doctor.OtherProxy, Subject: s.Name, Severity: doctor.Risk,
			What:   fmt.Sprintf("the service %s, %s, can start another service proxy: %s", s.Name, s.State, s.Command),
			Advice: fmt.Sprintf(`if it is not wanted: sc.exe config "%s" start= disabled; see `, s.Name) + retiring + way("", s)})
	}
	return all
}

// writableFiles checks that only administrators may change what the proxy reads and runs as the system.
func (n *Node) writableFiles(context.Context) (doctor.Seen, error) {
	services, err := n.Windows.Services()
	if err != nil {
		return doctor.Seen{}, err
	}
	type object struct{ path, inherit string } // inherit is what icacls needs to give files in a folder the same rights
	all := []object{{n.Folder, inherited}}
	for _, path := range n.Files {
		all = append(all, object{path, ""})
	}
	for i := range services {
		path := programOf(services[i].Command)
		if at := strings.LastIndexAny(path, `/\`); at > 0 && (executable(path) == program || strings.EqualFold(path, n.Program)) {
			all = append(all, object{path[:at], inherited}, object{path, ""})
		}
	}
	var seen doctor.Seen
	for _, o := range all {
		writers, err := n.Windows.Writers(o.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return seen, err
		}
		seen.Note = strings.TrimPrefix(seen.Note+", "+o.path, ", ")
		if len(writers) > 0 {
			seen.Findings = append(seen.Findings, doctor.Finding{Topic: doctor.WritableFiles, Subject: o.path,
				What:   fmt.Sprintf("%s may be changed by %s", o.path, strings.Join(writers, ", ")),
				Fix:    readOnly(o.path, o.inherit, writers),
				Advice: fmt.Sprintf(`if one of them is the owner, first: icacls "%s" /setowner *S-1-5-32-544`, o.path)})
		}
	}
	if seen.Note == "" {
		return doctor.NothingToSee("there are none yet"), nil
	}
	return seen, nil
}

// inherited has files in a folder inherit a right.
const inherited = "(OI)(CI)"

// readOnly returns the command that leaves all rights to SYSTEM and Administrators, and to others that they may read
// (https://learn.microsoft.com/windows-server/administration/windows-commands/icacls).
func readOnly(path, inherit string, others []string) string {
	command := fmt.Sprintf(`icacls "%s" /inheritance:r /grant:r "*S-1-5-18:%sF" "*S-1-5-32-544:%sF"`, path, inherit, inherit)
	for _, name := range others {
		if strings.HasPrefix(name, "S-1-") { // an account without a name
			name = "*" + name
		}
		command += fmt.Sprintf(` "%s:%sRX"`, name, inherit)
	}
	return command
}
