// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kubeproxy/common/doctor"
	"kubeproxy/common/files"
	"kubeproxy/platform/windows/hns"
)

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

// firstConfig reads the configuration in a folder that a container runtime uses. It returns nil if there is none that
// can be read.
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
