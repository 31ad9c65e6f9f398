// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"testing"
	"time"

	"kubeproxy/common/service"
)

// Objects of another kind have wanted names.
func TestIncompatibleObjectsAreReplaced(t *testing.T) {
	sticky := *simple(1).Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-000", Protocol: service.TCP})
	sticky.Affinity = time.Hour
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{&sticky})
	spoil := map[string]func(*fakeTable){
		"base set":            func(x *fakeTable) { x.sets["services"].set = hairpin },
		"base chain":          func(x *fakeTable) { x.chains["output"].hook = &hook{name: "input", priority: srcNAT} },
		"a Service's own set": func(x *fakeTable) { x.sets[memberSet(&sticky, clusterList).name].set = hairpin },
		"a Service's own chain": func(x *fakeTable) {
			x.chains[objectName("affinity", clusterList, sticky.Name)].hook = &hook{name: "output", priority: dstNAT}
		},
	}
	for name, do := range spoil {
		t.Run(name, func(t *testing.T) {
			k := &fake{}
			apply(t, &Backend{driver: k}, want)
			do(k.table)
			b := &Backend{driver: k}
			apply(t, b, want)
			fresh := &fake{}
			apply(t, &Backend{driver: fresh}, want)
			for n, s := range fresh.table.sets {
				if got := k.table.sets[n]; got == nil || got.spec(service.IPv4) != s.spec(service.IPv4) || len(got.elements) != len(s.elements) {
					t.Errorf("set %s is not as in a new table", n)
				}
			}
			for n, c := range fresh.table.chains {
				if got := k.table.chains[n]; got == nil || got.hook.spec() != c.hook.spec() {
					t.Errorf("chain %s is not as in a new table", n)
				}
			}
		})
	}
}
