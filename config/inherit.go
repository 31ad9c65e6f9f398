// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// inheritedFields are the settings of section nftables that section iptables has too.
// Periods are inherited together, because one limits the other.
var inheritedFields = [][]string{{"masqueradeAll"}, {"masqueradeBit"}, {"minSyncPeriod", "syncPeriod"}}

// inheritFields makes mode nftables use the settings in section iptables, if the file
// sets neither a mode nor the same settings in section nftables. When such a file was
// written, no mode meant iptables. For a file that names one of the two modes,
// inheritFields adds notes about settings that exist for the other mode only.
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

// setsAny reports whether the file or a flag sets one of the settings of section to a
// value other than its default. A period of 0 counts as the default.
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
			b.notef(from, "applies to mode nftables, too, because neither mode nor %s is set", to)
		}
	}
}

// noteOther adds notes about settings that are set for the mode other, but not for mine,
// the present one.
func (b *build) noteOther(other, mine string, names []string) {
	for _, name := range names {
		if b.differs(other+"."+name) && !b.setsAny(mine, names) {
			b.notef(other+"."+name, "has no effect in mode %s: set %s.%s", mine, mine, name)
		}
	}
}
