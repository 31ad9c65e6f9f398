// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// TestChangesAreWhatIsWanted runs syncs that read nothing from the kernel except
// draining destinations. Each must succeed. After each the kernel must serve the same as
// a new one, apart from draining destinations.
func TestChangesAreWhatIsWanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
		k := newFake(w.Family)
		b := newBackend(w.Family, k, Options{})
		b.SetResync(time.Hour)
		node := w.Node()
		for n := range 6 {
			ports := w.Ports()
			for i, p := range ports {
				if w.DrawBool("own") { // maybe where another Service has a NodePort
					p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: generate.NodeAddr[w.Family], Port: uint16(30004 - i)})
				}
			}
			want := service.New(uint64(n), node, ports)
			apply(t, b, want)
			wantSameServing(t, b, k, want)
			k.drawConns(w)
			k.clock = k.clock.Add(time.Duration(w.DrawInt("time", 8)) * time.Second)
		}
	})
}

// drawConns gives some destinations a connection.
func (fa *fake) drawConns(w generate.Cluster) {
	for _, at := range sortedKeys(fa.servers) {
		dests := fa.servers[at].dests
		for _, a := range slices.SortedFunc(maps.Keys(dests), netip.AddrPort.Compare) {
			x := dests[a]
			x.conns = uint32(w.DrawInt("conns", 2))
			dests[a] = x
		}
	}
}

// testingTB is a *testing.T or *rapid.T.
type testingTB interface {
	fataler
	Errorf(string, ...any)
}

// wantSameServing compares what accepts new connections with a kernel that was
// programmed in one step.
func wantSameServing(t testingTB, b *Backend, k *fake, want *service.Snapshot) {
	fresh := newFake(b.family)
	apply(t, newBackend(b.family, fresh, b.options), want)
	for at, s := range k.servers {
		wants := fresh.servers[at]
		if wants == nil {
			wants = &fakeServer{server: s.server}
		}
		if s.normalized() != wants.normalized() {
			t.Errorf("%s is %+v, want %+v", at, s.server, wants.server)
		}
		open := maps.Clone(s.dests)
		for a, x := range open {
			if x.conns = 0; x.weight == 0 {
				delete(open, a)
			} else {
				open[a] = x
			}
		}
		if !maps.Equal(open, wants.dests) {
			t.Errorf("%s has %v, want %v", at, open, wants.dests)
		}
	}
	for at := range fresh.servers {
		if k.servers[at] == nil {
			t.Errorf("%s is not there", at)
		}
	}
	var sets state
	k.readSets(&sets)
	for at := range k.servers {
		if !sets.serverSet[at] {
			t.Errorf("%s is not in the set of virtual servers", at)
		}
	}
	if len(sets.serverSet) > len(k.servers) {
		t.Errorf("in the set are %v, and there are %v", sets.serverSet, k.servers)
	}
	if !maps.Equal(k.routes, fresh.routes) {
		t.Errorf("addresses %v, want %v", k.routes, fresh.routes)
	}
}
