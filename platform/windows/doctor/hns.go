// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kubeproxy/common/doctor"
	"kubeproxy/common/files"
	"kubeproxy/common/service"
	"kubeproxy/platform/windows/hns"
)

const updates = "install the updates of Windows Server 2019, or use Windows Server 2022 or newer"

// version checks that HNS has what the configuration and the Services ask for.
func (n *Node) version(ctx context.Context) (doctor.Seen, error) {
	return n.withHNS(ctx, func(l hns.Listing) (doctor.Seen, error) {
		want, err := n.Services(ctx)
		if err != nil {
			return doctor.Seen{}, err
		}
		c, err := n.choose(ctx, l)
		return versionSeen(l, n.Options, want, err == nil && c.Network.Kind == hns.Overlay), nil
	})
}

// asked is what Services ask for.
type asked struct{ ipv6, affinity bool }

func askedBy(s *service.Snapshot) (a asked) {
	if s == nil {
		return a
	}
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			a.affinity = a.affinity || p.Affinity > 0
			a.ipv6 = a.ipv6 || f == service.IPv6
		}
	}
	return a
}

func versionSeen(l hns.Listing, o hns.Options, want *service.Snapshot, overlay bool) doctor.Seen {
	has, a := l.Version.Features(), askedBy(want)
	var seen doctor.Seen
	var lacks []string
	for _, x := range []struct {
		has      bool
		name     string
		asked    bool
		by       string
		severity doctor.Severity
	}{
		{has.RemoteSubnet, "remote subnets", overlay, "the overlay network needs them", doctor.Blocks},
		{has.DSR, "direct server return", o.DSR, "--enable-dsr or winkernel.enableDSR asks for it, without effect", doctor.Risk},
		{has.DualStack, "dual stack", a.ipv6 && !overlay, "Services have addresses of IPv6, which are not served", doctor.Risk},
		{has.Affinity, "session affinity", a.affinity, "Services ask for it, and clients change the endpoint", doctor.Risk},
		{has.Modify, "changes in place", false, "", ""},
	} {
		if x.has {
			continue
		}
		lacks = append(lacks, x.name)
		if x.asked {
			seen.Findings = append(seen.Findings, doctor.Finding{Topic: doctor.HNSVersion, Subject: x.name, Severity: x.severity,
				What: fmt.Sprintf("HNS %s has no %s: %s", l.Version, x.name, x.by), Advice: updates})
		}
	}
	seen.Note = l.Version.String() + ", with all that this proxy uses"
	if len(lacks) > 0 {
		seen.Note = fmt.Sprintf("%s, without %s", l.Version, strings.Join(lacks, ", "))
	}
	return seen
}

// choose returns the network for Services. What the Node object says helps where it can be read.
func (n *Node) choose(ctx context.Context, l hns.Listing) (hns.NetworkChoice, error) {
	var podCIDRs []netip.Prefix
	if want, err := n.Services(ctx); err == nil && want != nil {
		podCIDRs = want.Node.PodCIDRs
	}
	return hns.ChooseNetwork(l, n.Options, podCIDRs)
}

// network checks that the network of pods can be chosen.
func (n *Node) network(ctx context.Context) (doctor.Seen, error) {
	return n.withHNS(ctx, func(l hns.Listing) (doctor.Seen, error) {
		c, err := n.choose(ctx, l)
		if err != nil {
			return doctor.Seen{Findings: []doctor.Finding{{Topic: doctor.HNSNetwork, What: err.Error(),
				Advice: "look at the log of the network plugin; Get-HnsNetwork lists the networks"}}}, nil
		}
		seen := doctor.Seen{Note: fmt.Sprintf("%s, %s", c.Network.Name, c.Network.Kind)}
		from := c.Network.Provider
		if want, err := n.Services(ctx); err == nil && want != nil && len(want.Node.Addrs) > 0 && from.IsValid() && !slices.Contains(want.Node.Addrs, from) {
			seen.Findings = append(seen.Findings, doctor.Finding{Topic: doctor.HNSNetwork, Subject: c.Network.Name, Severity: doctor.Risk,
				What:   fmt.Sprintf("network %q sends from %s, which is no address of the Node: %v", c.Network.Name, from, want.Node.Addrs),
				Advice: "have network plugin and kubelet use the same adapter: the interface in the plugin's configuration, --node-ip of kubelet"})
		}
		seen.Findings = append(seen.Findings, strayPods(l, c.Network)...)
		return seen, nil
	})
}

// strayPods finds pods that the container runtime put into another network, mostly nat (kubernetes/kubernetes#101680).
func strayPods(l hns.Listing, network hns.Network) []doctor.Finding {
	var all []doctor.Finding
	for name, addrs := range l.PodsElsewhere(network.ID) {
		const shown = 8
		text, more := fmt.Sprint(addrs[:min(len(addrs), shown)]), ""
		if len(addrs) > shown {
			more = fmt.Sprintf(" and %d more", len(addrs)-shown)
		}
		all = append(all, doctor.Finding{Topic: doctor.StrayPods, Subject: name,
			What: fmt.Sprintf("pods of this node are in network %q, not in %q, which is for Services: %s%s",
				name, network.Name, strings.Trim(text, "[]"), more),
			Advice: "in the folder of CNI configurations that the container runtime reads (conf_dir of containerd), " +
				"let the one of the network plugin be the first by name, then make these pods again"})
	}
	return all
}

// sourceVIP checks that the configured source VIP can be used, or one be reserved, and that nothing else gets it.
func (n *Node) sourceVIP(ctx context.Context) (doctor.Seen, error) {
	return n.withHNS(ctx, func(l hns.Listing) (doctor.Seen, error) {
		c, err := n.choose(ctx, l)
		if err != nil {
			return doctor.NothingToSee("there is no network for it"), nil
		}
		if c.Network.Kind != hns.Overlay && !n.Options.SourceVIP.IsValid() {
			return doctor.NothingToSee("it is the address of the node on a network of type %s", c.Network.Kind), nil
		}
		if c.Network.Kind != hns.Overlay {
			return doctor.Seen{Note: n.Options.SourceVIP.String() + ", as configured"}, nil
		}
		vip, reserve, err := hns.ChooseSourceVIP(l, c.Network, n.Options.SourceVIP)
		switch {
		case err != nil:
			return doctor.Seen{Findings: []doctor.Finding{{Topic: doctor.SourceVIP, Subject: n.Options.SourceVIP.String(), What: err.Error(),
				Advice: "leave winkernel.sourceVip out, and the proxy reserves one"}}}, nil
		case reserve != nil && !vip.IsValid():
			return doctor.Seen{Note: "the proxy will reserve the last free address of the subnet"}, nil
		}
		return doctor.Seen{Note: vip.String(), Findings: n.alsoVIP(l, c.Network, vip)}, nil
	})
}

// vfpService is the driver that puts load balancers of HNS into virtual switches.
const vfpService = "VfpExt"

// extension checks that the driver runs.
func (n *Node) extension(context.Context) (doctor.Seen, error) {
	state, err := n.Windows.Service(vfpService)
	if err != nil {
		return doctor.Seen{}, err
	}
	f := doctor.Finding{Topic: doctor.VFPExtension, What: fmt.Sprintf("the service %s, the VFP extension of virtual switches, is %s", vfpService, state)}
	switch state {
	case Running:
		return doctor.Seen{Note: "service " + vfpService + " runs"}, nil
	case Stopped:
		f.Fix = "sc.exe start " + vfpService
		f.Advice = "if it does not start, restart Windows"
	default:
		f.Fix, f.Advice = `powershell -Command "Install-WindowsFeature Containers"`, "restart Windows after it"
	}
	return doctor.Seen{Findings: []doctor.Finding{f}}, nil
}

// directReturn checks that direct server return is used where ports get short without it, and that pods are ready for
// it: one that connects to itself through its Service gets no answer unless the network plugin gave its endpoint a policy
// (Azure/AKS#2608).
func (n *Node) directReturn(ctx context.Context) (doctor.Seen, error) {
	return n.withHNS(ctx, func(l hns.Listing) (doctor.Seen, error) {
		c, err := n.choose(ctx, l)
		if err != nil {
			c.Network.ID = ""
		}
		pods, ready := l.LoopbackDSR(c.Network.ID)
		unready := fmt.Sprintf("%d of %d pods of this node have no policy of the network plugin for connections to themselves with direct server return", pods-ready, pods)
		blocks := l.PortBlocks(service.Address{Family: service.IPv4, Protocol: service.TCP})
		switch {
		case !l.Version.Features().DSR:
			return doctor.NothingToSee("this HNS has none"), nil
		case n.Options.DSR && ready < pods:
			return doctor.Seen{Findings: []doctor.Finding{{Topic: doctor.DSRLoopback, What: "winkernel.enableDSR is on, and " + unready,
				Advice: "set loopbackDSR: true in the configuration of win-bridge or win-overlay and make these pods again, or update the network plugin; else set winkernel.enableDSR: false"}}}, nil
		case n.Options.DSR:
			return doctor.Seen{Note: "on"}, nil
		case blocks*hns.PortBlockSize*2 < hns.UsualDynamicPorts:
			return doctor.Seen{Note: fmt.Sprintf("off; %d load balancers over TCP take %d dynamic ports each", blocks, hns.PortBlockSize)}, nil
		}
		f := doctor.Finding{Topic: doctor.DSROff, What: fmt.Sprintf("HNS %s has direct server return, winkernel.enableDSR is false, and %d load balancers over TCP take %d dynamic ports each", l.Version, blocks, hns.PortBlockSize),
			Advice: "set winkernel.enableDSR: true, or --enable-dsr; the gate WinDSR is on always in this proxy"}
		if ready < pods {
			f.Advice = "first see to the network plugin (loopbackDSR of win-bridge and win-overlay): " + unready + "; then " + f.Advice
		}
		return doctor.Seen{Findings: []doctor.Finding{f}}, nil
	})
}

// The dynamic ports of a node, see hns.PortBlock.
const (
	// widen sets a range that has no NodePorts in it, 30000 to 32767 by default.
	widen = "netsh int %s set dynamicportrange %s start=32768 num=32767"
	// nearlyAll is the share of the usual range that counts as all, where Windows does not say.
	nearlyAll = 90
)

// dynamicPorts checks that another load balancer gets a block of ports.
func (n *Node) dynamicPorts(ctx context.Context) (doctor.Seen, error) {
	return n.withHNS(ctx, func(l hns.Listing) (doctor.Seen, error) {
		var seen doctor.Seen
		used := 0
		for _, f := range []service.Family{service.IPv4, service.IPv6} {
			for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
				k := service.Address{Family: f, Protocol: protocol}
				blocks := l.PortBlocks(k)
				used += blocks
				left, err := n.PortsLeft(ctx, k)
				if err != nil { // Windows does not say: count
					left = blocks*hns.PortBlockSize*100 < hns.UsualDynamicPorts*nearlyAll
				}
				if !left {
					seen.Findings = append(seen.Findings, n.portFinding(k, blocks))
				}
			}
		}
		seen.Note = fmt.Sprintf("blocks of %d in use: %d", hns.PortBlockSize, used)
		return seen, nil
	})
}

func (n *Node) portFinding(k service.Address, blocks int) doctor.Finding {
	family := strings.ToLower(k.Family.String())
	f := doctor.Finding{Topic: doctor.DynamicPorts, Subject: fmt.Sprintf("%s/%s", k.Family, k.Protocol), Fix: fmt.Sprintf(widen, family, k.Protocol),
		What: fmt.Sprintf("no block of %d dynamic ports is left for load balancers over %s and %s; %d of them without direct server return have one each", hns.PortBlockSize, k.Family, strings.ToUpper(k.Protocol.String()), blocks)}
	f.Advice = "see that no NodePort is in the range"
	if !n.Options.DSR {
		f.Advice = "rather set winkernel.enableDSR: true, which needs no such ports for ClusterIPs, if the network plugin prepares pods for it (loopbackDSR); " + f.Advice
	}
	return f
}

// CNI is where network plugins of a node have their files.
type CNI struct {
	Folders []string // with configurations, of which a container runtime uses the first by name
	Leases  string   // of host-local, with a folder for each network and a file for each address
}

// alsoVIP finds who else has the source VIP, or may give it to a pod.
func (n *Node) alsoVIP(l hns.Listing, network hns.Network, vip netip.Addr) []doctor.Finding {
	var all []doctor.Finding
	add := func(subject, advice, what string) {
		all = append(all, doctor.Finding{
			Topic: doctor.SourceVIP, Subject: subject, Severity: doctor.Risk, What: what, Advice: advice,
		})
	}
	var holders []string
	taken := map[netip.Addr]bool{}
	for _, e := range l.Endpoints {
		if e.Network != network.ID || e.Remote || len(e.Addrs) == 0 {
			continue
		}
		if e.HasAddr(vip) {
			holders = append(holders, fmt.Sprintf("%q", e.Name))
		} else if e.Name == hns.CalicoVIPName {
			add(e.Name, fmt.Sprintf("set winkernel.sourceVip: %s", e.Addrs[0]),
				fmt.Sprintf("the source VIP is %s, and Calico has made the endpoint %s with %s for it: "+
					"the IPAM of Calico may give %s to a pod", vip, e.Name, e.Addrs[0], vip))
		}
		for _, a := range e.Addrs {
			taken[a] = true
		}
	}
	const exclude = "have the IPAM exclude the source VIP (rangeEnd of host-local), or leave winkernel.sourceVip out, " +
		"and the proxy reserves the last free address"
	if len(holders) > 1 {
		add(vip.String(), exclude, fmt.Sprintf("several endpoints of network %q have the source VIP %s: %s",
			network.Name, vip, strings.Join(holders, ", ")))
	}
	for _, folder := range n.CNI.Folders {
		path, c := firstConfig(folder)
		if c != nil && c.gives(vip, network, taken) && !c.leased(vip, n.CNI.Leases) {
			add(path, exclude, fmt.Sprintf("the IPAM in %s does not know the source VIP, and gives %s out while other "+
				"addresses are free: HNS refuses the pod that gets it", path, vip))
		}
	}
	return all
}

// cniConfig is a configuration of a network plugin, as far as it says which addresses host-local gives out
// (https://www.cni.dev/plugins/current/ipam/host-local/).
type cniConfig struct {
	Name, Type string
	Plugins    []cniConfig
	IPAM       struct {
		Type, DataDir string
		addrRange
		Ranges [][]addrRange
	}
}

type addrRange struct {
	Subnet               netip.Prefix
	RangeStart, RangeEnd netip.Addr
}

const maxCNIConfig = 1 << 20

// firstConfig reads the first readable configuration in a folder of a container runtime, else nil.
func firstConfig(folder string) (path string, c *cniConfig) {
	entries, _ := os.ReadDir(folder)
	i := slices.IndexFunc(entries, func(e os.DirEntry) bool {
		return slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name()))
	})
	if i < 0 {
		return "", nil
	}
	path = filepath.Join(folder, entries[i].Name())
	text, _, err := files.Read(path, maxCNIConfig)
	if err != nil || json.Unmarshal(text, &c) != nil {
		return path, nil
	}
	if c != nil && len(c.Plugins) > 0 { // the first has the IPAM, the others add to what it makes
		c.Plugins[0].Name = c.Name
		c = &c.Plugins[0]
	}
	return path, c
}

// gives reports whether the IPAM comes to vip while other addresses are free. It begins at the lowest. The plugin of
// flannel for Windows lets host-local have the whole subnet of the node
// (https://github.com/flannel-io/cni-plugin/blob/main/flannel_windows.go).
func (c *cniConfig) gives(vip netip.Addr, network hns.Network, taken map[netip.Addr]bool) bool {
	var ranges []addrRange
	switch {
	case c.Type == "flannel":
		for _, p := range network.Subnets {
			ranges = append(ranges, addrRange{Subnet: p})
		}
	case c.IPAM.Type == "host-local":
		ranges = append(slices.Concat(c.IPAM.Ranges...), c.IPAM.addrRange)
	}
	return slices.ContainsFunc(ranges, func(r addrRange) bool { return r.has(vip) && r.freeAfter(vip, taken) })
}

// leased reports whether host-local counts vip as given out, as after a script that asks it for a source VIP
// (https://github.com/containernetworking/plugins/blob/main/plugins/ipam/host-local/backend/disk/backend.go).
func (c *cniConfig) leased(vip netip.Addr, leases string) bool {
	_, err := os.Stat(filepath.Join(cmp.Or(c.IPAM.DataDir, leases), c.Name, vip.String()))
	return err == nil
}

// has reports whether host-local gives out a: not the broadcast address.
func (r addrRange) has(a netip.Addr) bool {
	return r.Subnet.Contains(a) && r.Subnet.Contains(a.Next()) &&
		(!r.RangeStart.IsValid() || !a.Less(r.RangeStart)) && (!r.RangeEnd.IsValid() || !r.RangeEnd.Less(a))
}

func (r addrRange) freeAfter(a netip.Addr, taken map[netip.Addr]bool) bool {
	for a = a.Next(); r.has(a); a = a.Next() {
		if !taken[a] {
			return true
		}
	}
	return false
}
