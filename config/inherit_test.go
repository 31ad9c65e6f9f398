// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestInherit checks that settings of section iptables apply to mode nftables, if the
// file is from a time when no mode meant iptables.
func TestInherit(t *testing.T) {
	const said = "iptables: {masqueradeAll: true, masqueradeBit: 12, minSyncPeriod: 5s, syncPeriod: 10s}\n"
	// kubeadm writes all fields.
	const empty = "nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}\n"
	const note = "f:3: iptables.%s: applies to mode nftables, too, because neither mode nor nftables.%[1]s is set"
	all := []string{"masqueradeAll", "masqueradeBit", "minSyncPeriod", "syncPeriod"}
	notes := func(format string, names ...string) (lines []string) {
		for _, n := range names {
			lines = append(lines, fmt.Sprintf(format, n))
		}
		return lines
	}
	for name, tt := range map[string]struct {
		os    OS
		body  string
		args  string
		want  string
		notes []string
	}{
		"no mode":            {Linux, said, "", "true 12 5s 10s", notes(note, all...)},
		"kubeadm's file":     {Linux, said + empty, "", "true 12 5s 10s", notes(note, all...)},
		"nothing said":       {Linux, "iptables: {minSyncPeriod: 0s, syncPeriod: 0s}\n" + empty, "", "false 14 0s 30s", nil},
		"one of the periods": {Linux, "iptables: {minSyncPeriod: 3s}", "", "false 14 3s 30s", notes(note, "minSyncPeriod")},
		"periods of its own": {Linux, said + "nftables: {syncPeriod: 2s}", "", "true 12 1s 2s", notes(note, all[:2]...)},
		"a flag":             {Linux, said, "--iptables-masquerade-bit=9", "true 9 5s 10s", notes(note, "masqueradeAll", "minSyncPeriod", "syncPeriod")},
		"mode nftables":      {Linux, said, "--proxy-mode=nftables", "false 14 1s 30s", notes("f:3: iptables.%s: has no effect in mode nftables: set nftables.%[1]s", all...)},
		"mode iptables":      {Linux, "nftables: {masqueradeBit: 9}", "--proxy-mode=iptables", "false 9 1s 30s", []string{"f:3: nftables.masqueradeBit: has no effect in mode iptables: set iptables.masqueradeBit"}},
		"another mode":       {Linux, said, "--proxy-mode=ipvs", "false 14 1s 30s", []string{"f:3: iptables.syncPeriod: has no effect in mode ipvs, only in mode iptables"}},
		"another system":     {Windows, said, "", "false 14 1s 30s", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustLoad(t, tt.os, tt.body, strings.Fields(tt.args)...)
			n := c.NFTables
			if got := fmt.Sprint(n.MasqueradeAll, *n.MasqueradeBit, n.MinSyncPeriod.Duration, n.SyncPeriod.Duration); got != tt.want {
				t.Errorf("nftables has %s, want %s", got, tt.want)
			}
			var got []string
			for _, n := range c.Notes {
				if strings.Contains(n.Text, "mode") && !strings.Contains(n.Path, "ddresses") {
					got = append(got, n.String())
				}
			}
			if diff := cmp.Diff(tt.notes, got); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}
