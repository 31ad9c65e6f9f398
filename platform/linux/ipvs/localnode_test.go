// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// TestExternalAddressOfTheNodeGoesBeforeNodePorts checks that a node address that is an
// external address of a Service takes precedence over NodePorts with the same port
// number, of the same Service or another one, in any order, and that the NodePort
// answers again when that Service is deleted.
func TestExternalAddressOfTheNodeGoesBeforeNodePorts(t *testing.T) {
	bare, outer := web(0, 1, service.TCP), web(1, 3, service.TCP)
	bare.Frontends = append(bare.Frontends, service.Frontend{Kind: service.NodePort, Port: 30080})
	inner := *bare
	inner.Frontends = append(inner.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[0], Port: 30080})
	outer.Frontends = append(outer.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[0], Port: 30080})
	own := addressAt(generate.NodeAddr[0], 30080, service.TCP)
	for name, c := range map[string]struct {
		change service.Change
		dests  int
	}{
		"its own":           {service.Change{Old: bare, New: &inner}, 1},
		"another Service's": {service.Change{New: outer}, 3},
	} {
		k := newFake(service.IPv4)
		b := newBackend(service.IPv4, k, Options{})
		back := service.Change{Old: c.change.New, New: c.change.Old}
		s := snapshot(bare)
		apply(t, b, s)
		for _, x := range []struct {
			change service.Change
			dests  int
		}{{c.change, c.dests}, {back, 1}} {
			s, _ = applyChanges(t, b, s, x.change)
			applyUntilDrained(t, b, k, s)
			if n := len(k.servers[own].dests); n != x.dests {
				t.Errorf("%s: %d destinations at %s, want %d", name, n, own, x.dests)
			}
			k.clock = k.clock.Add(time.Minute)
			wantLines(t, planOf(t, b, s))
			if n := len(k.servers); n != len(portsOf(s, service.IPv4))+2 { // two addresses answer NodePorts
				t.Errorf("%s: %d virtual servers", name, n)
			}
		}
	}
}
