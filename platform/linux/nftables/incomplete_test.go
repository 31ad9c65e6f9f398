// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// TestIncompleteSnapshotKeepsAndChanges has an earlier process leave a Service. The first
// snapshot of the next one does not have it yet, and a later one has it with other
// endpoints.
func TestIncompleteSnapshotKeepsAndChanges(t *testing.T) {
	k := &fake{}
	first := simple(2)
	apply(t, &Backend{driver: k}, first)
	b := &Backend{driver: k}
	partial := simple(1)
	partial.Incomplete = true
	apply(t, b, partial)
	if n := len(k.table.sets["services"].elements); n != 2 {
		t.Fatalf("%d Services are left, want both", n)
	}
	changed := *first.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-001", Protocol: service.TCP})
	changed.Cluster = []service.Endpoint{{Addr: addrPort("10.244.1.9:8080")}}
	more := partial.With(2, partial.Node, []service.Change{{New: &changed}})
	more.Incomplete = true
	apply(t, b, more)
	if p, err := (&Backend{driver: k}).Plan(t.Context(), more); err != nil || !p.Empty() {
		t.Errorf("still to do: %v\n%s", err, generate.Text(p))
	}
}
