// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"fmt"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipvs"
)

var ipvsOptions = ipvs.Options{MasqueradeBit: 14}

func renderIPVS(t *testing.T, want *service.Snapshot) []byte {
	t.Helper()
	all, _ := ipvs.Render(want, ipvsOptions)
	return []byte(all.String())
}

// writeIPVS writes addresses and virtual servers, the elements of all sets, and the
// chains that are not in the skeleton or differ there.
func writeIPVS(_ *testing.T, want *service.Snapshot, _ scenarioOptions) string {
	var b strings.Builder
	for _, f := range service.Families {
		d := ipvs.NewDocument(f, want, ipvsOptions)
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
		for _, s := range d.Sets {
			var elements []string
			for _, e := range s.Elements {
				elements = append(elements, e.Element)
			}
			writeLines(&b, s.Name, elements)
		}
		writeAdded(&b, f, ipvs.NewDocument(f, emptySnapshot, ipvsOptions).Chains, d.Chains)
	}
	return orSkeletonOnly(&b)
}
