// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// inheritedFields are the settings of section nftables that section iptables has, too.
// Periods go together, since one limits the other.
var inheritedFields = [][]string{{"masqueradeAll"}, {"masqueradeBit"}, {"minSyncPeriod", "syncPeriod"}}

// inheritFields has mode nftables do what the file says about iptables, where the file
// names no mode and nothing else is said about nftables. When such a file was
// written, no mode meant iptables. A file that names one of the two modes gets a
// note instead on what it says of the other alone.
func (b *build) inheritFields() {
	if b.os != Linux {
		return
	}
	for _, names := range inheritedFields {
		switch b.Mode {
		case "":
			if b.setsAny("iptables", names) && !b.setsAny("nftables", names) {
				b.copyFields(names)
			}
		case NFTables:
			b.noteOther("iptables", "nftables", names)
		case IPTables:
			b.noteOther("nftables", "iptables", names)
		}
	}
}

// setsAny reports that the file or a flag gives one of the settings of section,
// and not its default. A period of 0 stands for that.
func (b *build) setsAny(section string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return b.differs(section + "." + name) })
}

func (b *build) differs(path string) bool {
	plain := v1alpha1.KubeProxyConfiguration{}
	setDefaults(&plain, b.os, func(string) bool { return false })
	v := fieldAt(&b.KubeProxyConfiguration, path)
	return b.given(path) && !v.IsZero() && showValue(v) != showValue(fieldAt(&plain, path))
}

func (b *build) copyFields(names []string) {
	for _, name := range names {
		from, to := "iptables."+name, "nftables."+name
		fieldAt(&b.KubeProxyConfiguration, to).Set(fieldAt(&b.KubeProxyConfiguration, from))
		if b.differs(from) {
			b.notef(from, "counts in mode nftables, too, as neither mode nor %s is set", to)
		}
	}
}

// noteOther remarks on what is said for a mode that is not taken, and not for
// the one that is.
func (b *build) noteOther(other, mine string, names []string) {
	for _, name := range names {
		if b.differs(other+"."+name) && !b.setsAny(mine, names) {
			b.notef(other+"."+name, "has no use in mode %s: set %s.%s", mine, mine, name)
		}
	}
}
