// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"fmt"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
)

var besideOptions = nftables.Options{Role: nftables.BesideIPVS, MasqueradeBit: 14}

// writeIPVS writes virtual servers and addresses, and what the table beside
// them has besides its skeleton.
func writeIPVS(t *testing.T, want *service.Snapshot, _ choices) string {
	t.Helper()
	var b strings.Builder
	for _, f := range service.Families {
		d := ipvs.NewDocument(f, want, ipvs.Options{})
		var addrs []string
		for _, a := range d.Addresses {
			addrs = append(addrs, fmt.Sprintf("%s from %s", a.Addr, a.Source))
		}
		writeLines(&b, f.String()+" addresses", addrs)
		for _, s := range d.Servers {
			var to []string
			for _, a := range s.Destinations {
				to = append(to, a.String())
			}
			writeLines(&b, s.String(), to)
		}
	}
	return b.String() + writeTables(t, want, besideOptions)
}
