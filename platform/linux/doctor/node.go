// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"kubeproxy/common/condition"
	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/proc"
	"kubeproxy/platform/linux/sysctl"
)

// Node is what the checks read.
type Node struct {
	// Files is the root of the node's file system.
	Files fs.FS
	// Writable returns whether this process may write a file below the root.
	Writable func(name string) bool
	// Kernel lists what the kernel has in the network namespace of the process.
	Kernel Kernel
	// Settings are those that the configuration asks for.
	Settings sysctl.Settings
	// Modes are the modes to check for, at least one.
	Modes []Mode
	// ProxyName is the name of a proxy for labelled Services, empty for others.
	ProxyName string
	// Services returns the Services that are to be served, nil if none are known.
	Services func(context.Context) (*service.Snapshot, error)
	// Proc is the file system at /proc.
	Proc fs.FS
	// Servers are those of the proxy.
	Servers []doctor.Server
	// Holder returns the proxy that programs the node, see lease.QueryHolder.
	Holder func(context.Context) (lease.Identity, error)
	// Answered is whether a proxy of this kind runs and answered, and AnsweredAt where, if known.
	Answered   bool
	AnsweredAt netip.AddrPort
	// BeforeStart is whether the findings are for a start.
	BeforeStart bool
	// Targets are where service proxies may have left rules, without those that the modes
	// keep in order. CleanupCommand empties them.
	Targets        []Target
	CleanupCommand string
	// IPTables returns which variants of iptables are in use. It fails where there is none.
	IPTables func() (Variants, error)
	// Route returns an error if packets of the node cannot leave for an address.
	Route func(netip.Addr) error
	// SharedMark says by which rule another program uses the masquerade bit, empty if none does. It is
	// nil in modes that know what they translated without it.
	SharedMark func(service.Family) (string, error)
	// Acceleration is socket acceleration.
	Acceleration Acceleration
}

// Kernel lists what the kernel has. It changes nothing.
type Kernel interface {
	// Links lists the network interfaces.
	Links() ([]Link, error)
	// FilterChains calls each for the chains that filter packets to this node, and those that
	// it forwards, and drop what no rule accepts. Their rules can be read meanwhile.
	FilterChains(ctx context.Context, each func(*Chain) error) error
	// FirewallNames lists tables and chains by whose names firewall services are known.
	FirewallNames(context.Context) ([]string, error)
}

// Link is a network interface.
type Link struct {
	Name   string
	Index  uint32
	Bridge bool
	// Master is the bridge that it is a port of, empty for none.
	Master string
	// Global is, by family, whether it has an address that other machines reach.
	Global [2]bool
	// Subnet is whether it has an IPv4 address in a network, so that it leads to other
	// machines. A link to a single pod has only an address.
	Subnet bool
}

// any and all return whether a mode to check for has a trait, or all do.
func (n *Node) any(trait func(Mode) bool) bool { return slices.ContainsFunc(n.Modes, trait) }

func (n *Node) all(trait func(Mode) bool) bool {
	return !n.any(func(m Mode) bool { return !trait(m) })
}

// Checks returns all checks of the node.
func (n *Node) Checks() []doctor.Check {
	var all []doctor.Check
	for _, m := range n.Modes {
		all = append(all, n.modeCheck(m))
	}
	return append(all, []doctor.Check{
		{Name: "forwarding", Look: n.forwarding},
		{Name: "reverse path filter", Look: n.reversePathFilter},
		{Name: "bridges", Look: n.bridges},
		{Name: "settings", Look: n.settings},
		{Name: "connection tracking", Look: n.conntrack},
		{Name: "firewalls", Look: n.firewalls},
		{Name: "routes to Services", Look: n.serviceRoutes},
		{Name: "marks of others", Look: n.sharedMark},
		{Name: "policy of INPUT", Look: n.inputPolicy},
		{Name: "policy of FORWARD", Look: n.forwardPolicy},
		{Name: "iptables variants", Look: n.variants},
		{Name: "xtables lock", Look: n.xtablesLock},
		{Name: "other proxies", Look: n.otherProxies},
		{Name: "leftovers", Look: n.leftovers},
		{Name: "socket acceleration", Look: n.acceleration},
		{Name: "ports of the proxy", Look: n.takenPorts},
		{Name: "NodePorts and listeners", Look: n.hiddenListeners},
	}...)
}

// read returns the trimmed content of a file.
func (n *Node) read(name string) (string, error) {
	b, err := fs.ReadFile(n.Files, name)
	return trim(b), err
}

// dryFiles are files that sysctl may write without effect. It implements sysctl.Files.
type dryFiles struct{ n *Node }

func (d dryFiles) ReadFile(name string) ([]byte, error) { return fs.ReadFile(d.n.Files, name) }

// WriteFile implements sysctl.Files. It succeeds if the file could be written.
func (d dryFiles) WriteFile(name string, _ []byte) error {
	if d.n.Writable(name) {
		return nil
	}
	return fmt.Errorf("write /%s: %w", name, fs.ErrPermission)
}

func (d dryFiles) Writable(name string) bool { return d.n.Writable(name) }

// sockets returns the socket tables of this thread's network namespace, see proc(5).
func (n *Node) sockets() (fs.FS, error) { return fs.Sub(n.Files, "proc/thread-self/net") }

// hiddenListeners checks for programs whose port is the NodePort of a Service.
func (n *Node) hiddenListeners(ctx context.Context) (doctor.Seen, error) {
	want, err := n.Services(ctx)
	if err != nil {
		return doctor.Seen{}, err
	}
	if want == nil {
		return doctor.NothingToSee("no Services are known"), nil
	}
	net, err := n.sockets()
	if err != nil {
		return doctor.Seen{}, err
	}
	found, err := proc.Listeners(net)
	if err != nil {
		return doctor.Seen{}, err
	}
	seen := doctor.Seen{Note: fmt.Sprintf("listeners: %d", len(found))}
	for _, h := range proc.HiddenBy(want, found) {
		name := h.Port.Name
		who, end := n.holder(h.Listener)
		seen.Findings = append(seen.Findings, doctor.Finding{
			Topic: doctor.NodePortHidden, Subject: fmt.Sprintf("%d/%s", h.NodePort, name.Protocol),
			What:   fmt.Sprintf("the NodePort %d/%s of Service %s/%s hides %s, which listens on %s", h.NodePort, name.Protocol, name.Namespace, name.Name, who, h.Listener.Addr),
			Advice: "let the program listen on another port, or give the Service another NodePort, or " + end,
		})
	}
	return seen, nil
}

// holder names a listener's process, and advises how to end it: no Fix, as somebody needs it.
func (n *Node) holder(l proc.Listener) (who, end string) {
	p, known := proc.BySocketInode(n.Proc, l.Inode)
	if known {
		return p.String(), fmt.Sprintf("end it, if nobody needs it: kill %d", p.PID)
	}
	option := "t"
	if l.Protocol == service.UDP {
		option = "u"
	}
	return "a program", fmt.Sprintf("end it, if nobody needs it; its name, on the host: ss -ln%sp 'sport = :%d'", option, l.Addr.Port())
}

// takenPorts checks that the proxy's servers can listen, beside proxies that otherProxies reports.
func (n *Node) takenPorts(ctx context.Context) (doctor.Seen, error) {
	if n.Answered {
		return doctor.NothingToSee("the running proxy has them; its conditions say what it lacks"), nil
	}
	running := n.running()
	own, _ := n.Holder(ctx)
	net, err := n.sockets()
	if err != nil {
		return doctor.Seen{}, err
	}
	found, err := proc.Listeners(net)
	if err != nil {
		return doctor.Seen{}, err
	}
	return doctor.TakenPorts(n.Servers, func(at netip.AddrPort) (h doctor.Holder) {
		for _, l := range found {
			if l.Protocol == service.TCP && l.ConflictsWith(at) && !n.isProxy(l, running, own.PID) {
				h.Addr = l.Addr
				h.Name, h.End = n.holder(l)
				break
			}
		}
		return h
	}), nil
}

// isProxy returns whether a service proxy has the listener: the process own, or one of running.
func (n *Node) isProxy(l proc.Listener, running []proc.Process, own int) bool {
	p, known := proc.BySocketInode(n.Proc, l.Inode)
	is := func(r proc.Process) bool { return r.PID == p.PID }
	return known && (p.PID == own || isProxyCommand(p.Command) || slices.ContainsFunc(running, is))
}

// proxyName is the name of the program of Kubernetes, and of this one.
const proxyName = "kube-proxy"

func isProxyCommand(command string) bool {
	program, _, _ := strings.Cut(command, " ")
	return path.Base(program) == proxyName
}

// otherProxies checks that at most one service proxy runs.
func (n *Node) otherProxies(ctx context.Context) (doctor.Seen, error) {
	var holder *lease.Identity
	if who, err := n.Holder(ctx); err == nil {
		holder = &who
	}
	running := n.running()
	if holder == nil && (n.Answered || !n.BeforeStart) && len(running) == 1 {
		return doctor.Seen{Note: fmt.Sprintf("one runs, process %d", running[0].PID)}, nil
	}
	return proxySeen(running, holder, n.asked(), n.ProxyName), nil
}

// asked returns the process of the proxy that answered, 0 if unknown. It may have lost the lease since.
func (n *Node) asked() int {
	net, err := n.sockets()
	if err != nil || !n.AnsweredAt.IsValid() {
		return 0
	}
	found, _ := proc.Listeners(net)
	for _, l := range found {
		if l.Protocol != service.TCP || !l.ConflictsWith(n.AnsweredAt) {
			continue // looking for a process takes long, and mode userspace has thousands of listeners
		}
		if p, known := proc.BySocketInode(n.Proc, l.Inode); known {
			return p.PID
		}
	}
	return 0
}

// Hung describes the only process of a proxy, see doctor.Silent, but of those for other Services.
func (n *Node) Hung() (what, advice string, several bool) {
	all := slices.DeleteFunc(n.running(), func(p proc.Process) bool {
		return namedProxy(p) && (n.ProxyName == "" || !strings.Contains(p.Command, n.ProxyName))
	})
	if len(all) != 1 {
		return "", "", len(all) > 1
	}
	what, pid := all[0].String()+" runs", all[0].PID
	switch proc.State(n.Proc, pid) {
	case 'T', 't':
		return what + ", but is stopped", fmt.Sprintf("unless somebody debugs it, let it go on: kill -CONT %d", pid), false
	case 'D':
		return what + ", but waits in the kernel", fmt.Sprintf("cat /proc/%d/stack and the kernel's log say what for; it cannot be ended before", pid), false
	}
	return what, "read its log and restart it; if it is another kube-proxy that this program is to replace, kube-proxy doctor --before-start has the findings for that", false
}

// running lists the processes of service proxies, except this one: by their name, and by the name of
// the lease, which a program of another name has.
func (n *Node) running() []proc.Process {
	all := slices.DeleteFunc(proc.ByName(n.Proc, proxyName), isAnotherCommand)
	net, err := n.sockets()
	if err != nil {
		return all
	}
	p, found := proc.LeaseHolder(n.Proc, net, n.ProxyName)
	if found && !slices.ContainsFunc(all, func(other proc.Process) bool { return other.PID == p.PID }) {
		all = append(all, p)
	}
	return all
}

// isAnotherCommand returns whether a process of the program runs one such as status.
func isAnotherCommand(p proc.Process) bool {
	words := strings.Fields(p.Command)
	return len(words) > 1 && !strings.HasPrefix(words[1], "-")
}

// proxySeen decides what the service proxies that run mean. holder has this node's lease, if any. The one that
// was asked, if known, is the one to stay.
func proxySeen(running []proc.Process, holder *lease.Identity, asked int, name string) doctor.Seen {
	own := asked
	if own == 0 && holder != nil {
		own = holder.PID
	}
	var others []proc.Process
	for _, p := range running {
		if own == 0 || p.PID != own {
			others = append(others, p)
		}
	}
	switch {
	case holder == nil && len(others) == 0:
		return doctor.Seen{Note: "none runs"}
	case len(others) == 0:
		return doctor.Seen{Note: fmt.Sprintf("one runs, process %d", cmp.Or(holder.PID, holder.OwnPID))}
	case name != "" || len(others) == 1 && holder == nil && namedProxy(others[0]):
		return doctor.Seen{Note: "each serves Services of its own"} // distinguished by labels of Services
	}
	f := doctor.Finding{Topic: doctor.OtherProxy, Subject: doctor.SubjectOtherProxy,
		Advice: fmt.Sprintf("wait if a rolling update is under way; else end what starts it, as kubectl -n kube-system get daemonset and systemctl list it, and then the process: kill %d", others[0].PID)}
	what := others[0].String()
	for _, p := range others[1:] {
		what += "; " + p.String()
		f.Advice += fmt.Sprintf(" %d", p.PID)
	}
	f.What = "another service proxy runs on this node: " + what
	if holder != nil {
		f.What = fmt.Sprintf("%s programs this node, and another service proxy runs: %s", holder, what)
		if own != holder.PID {
			f.What = fmt.Sprintf("beside process %d, which was asked, another service proxy programs this node: %s", own, holder)
		}
	}
	return doctor.Seen{Findings: []doctor.Finding{f}}
}

// namedProxy returns whether a proxy serves labelled Services only.
func namedProxy(p proc.Process) bool { return strings.Contains(p.Command, "--service-proxy-name") }

// Target is a place where a service proxy may have left rules.
type Target struct {
	Name string
	// Upstream is whether only kube-proxy of Kubernetes leaves something there.
	Upstream bool
	Find     func(context.Context) (string, error)
}

// leftovers checks for earlier proxies' rules. A running proxy removes them, or has a condition.
func (n *Node) leftovers(ctx context.Context) (doctor.Seen, error) {
	if _, err := n.Holder(ctx); err == nil || n.Answered {
		return doctor.NothingToSee("the running proxy removes them; its conditions say what stays"), nil
	}
	if len(n.running()) > 0 {
		return doctor.NothingToSee("the rules are those of a proxy that runs"), nil
	}
	var seen doctor.Seen
	for _, t := range n.Targets {
		what, err := t.Find(ctx)
		if err != nil {
			return seen, fmt.Errorf("%s: %w", t.Name, err)
		}
		if what == "" {
			continue
		}
		f := doctor.Finding{Topic: doctor.Leftovers, Subject: t.Name, What: fmt.Sprintf("%s has what an earlier proxy left: %s", t.Name, what),
			Advice: "start the proxy: it removes them when its own rules are in force, so that no connection is lost"}
		if !t.Upstream {
			f.Advice += "; on a node that is to have none, remove the rules of every mode: " + n.CleanupCommand
		}
		seen.Findings = append(seen.Findings, f)
	}
	seen.Note = fmt.Sprintf("%d places", len(n.Targets))
	return seen, nil
}

// mostRoutes bounds how many routes are looked up.
const mostRoutes = 1000

// serviceRoutes checks that processes of the node have a route to ClusterIPs.
func (n *Node) serviceRoutes(ctx context.Context) (doctor.Seen, error) {
	if n.all(Mode.routes) {
		return doctor.NothingToSee("the mode makes routes itself"), nil
	}
	want, err := n.Services(ctx)
	if err != nil {
		return doctor.Seen{}, err
	}
	if want == nil {
		return doctor.NothingToSee("no Services are known"), nil
	}
	looked := 0
	var seen doctor.Seen
	for _, f := range service.Families {
		var lost []netip.Addr
		var why error
		for _, a := range clusterIPs(want, f) {
			looked++
			if err := n.Route(a); err != nil {
				lost, why = append(lost, a), cmp.Or(why, err)
			}
		}
		if len(lost) == 0 {
			continue
		}
		fix, advice := n.routeCommand(f, serviceRange(want.Node, lost)), "give the node a default route"
		if fix != "" {
			advice = "or " + advice
		}
		seen.Findings = append(seen.Findings, doctor.Finding{
			Topic: doctor.ServiceRoute, Subject: f.String(),
			What:   fmt.Sprintf("the node has no route to %d ClusterIPs, the first is %s: %v", len(lost), lost[0], why),
			Fix:    fix,
			Advice: advice,
		})
	}
	seen.Note = fmt.Sprintf("ClusterIPs: %d", looked)
	return seen, nil
}

// sharedMark checks that no other program uses the masquerade bit.
func (n *Node) sharedMark(context.Context) (doctor.Seen, error) {
	if n.SharedMark == nil {
		return doctor.NothingToSee("only mode ipvs cannot tell them from its own"), nil
	}
	seen := doctor.Seen{Note: "rules of policy routing"}
	for _, f := range service.Families {
		text, err := n.SharedMark(f)
		if err != nil {
			return doctor.Seen{}, err
		}
		if text != "" {
			seen.Findings = append(seen.Findings, doctor.Finding{
				Topic: doctor.SharedMark, Subject: string(condition.SharedMark.Of(f.String())), What: text,
				Advice: "or give the other program a mark without the bit, as FwMark of wg-quick does",
			})
		}
	}
	return seen, nil
}

// clusterIPs returns ClusterIPs of a family, sorted.
func clusterIPs(s *service.Snapshot, f service.Family) []netip.Addr {
	var all []netip.Addr
	for p := range s.Ports(f) {
		for _, x := range p.Frontends {
			if x.Kind == service.ClusterIP {
				all = append(all, x.Addr)
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	return all[:min(len(all), mostRoutes)]
}

// serviceRange returns the known range of sorted ClusterIPs, or the smallest that holds them.
func serviceRange(n *service.Node, all []netip.Addr) netip.Prefix {
	first, last := all[0], all[len(all)-1]
	for _, x := range n.ServiceCIDRs {
		if x.Contains(first) && x.Contains(last) {
			return x
		}
	}
	p := netip.PrefixFrom(first, first.BitLen())
	for !p.Contains(last) {
		p = netip.PrefixFrom(first, p.Bits()-1).Masked()
	}
	return p
}

// routeCommand returns a command that makes a route through an interface of the node. No
// packet leaves by it, because the rules translate the address.
func (n *Node) routeCommand(f service.Family, to netip.Prefix) string {
	links, err := n.Kernel.Links()
	i := slices.IndexFunc(links, func(l Link) bool { return l.Global[f] && l.Master == "" })
	if err != nil || i < 0 {
		return ""
	}
	return fmt.Sprintf("ip route replace %s dev %s", to, links[i].Name)
}
