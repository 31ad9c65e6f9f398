// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/netlab"
)

// TestKernelRefuses checks that an op that the kernel refuses is reported by its index
// and meaning, and that all other ops are done.
func TestKernelRefuses(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, alwaysResync())
			k := b.driver.(*kernel)
			at := func(n int) service.Address {
				return addressAt(generate.NthAddr([]string{"10.96.0.0", "fd00:10:96::"}[f], n), 80, service.TCP)
			}
			to := []netip.AddrPort{netip.MustParseAddrPort("10.244.1.1:8080"), addrPort6(0)}[f]
			rr := server{scheduler: "rr", flags: flagOwned}
			var ops []op
			const full = 9
			for n := range full {
				ops = append(ops, op{verb: addServer, key: at(n), server: rr}, op{verb: addDest, key: at(n), dest: dest{addr: to, weight: 1}})
			}
			refused := map[int]struct {
				op   op
				want error
			}{
				3:            {op{verb: addServer, key: at(1), server: rr}, errExists},
				5:            {op{verb: addDest, key: at(1), dest: dest{addr: to}}, errServerNotCreated}, // it may be foreign
				6:            {op{verb: addDest, key: at(0), dest: dest{addr: to}}, errExists},
				7:            {op{verb: addDest, key: at(full + 1), dest: dest{addr: to}}, errMissing},
				9:            {op{verb: setServer, key: at(0), server: server{scheduler: "magic"}}, unix.ENOENT},
				11:           {op{verb: delServer, key: at(full + 1)}, errMissing},
				13:           {op{verb: delDest, key: at(1), dest: dest{addr: netip.AddrPortFrom(to.Addr(), 1)}}, errMissing},
				14:           {op{verb: delRoute, route: localRoute{addr: at(1).Addr}}, errMissing},
				15:           {op{verb: delAddr, route: localRoute{addr: at(1).Addr}}, errMissing},
				len(ops) - 1: {op{verb: addServer, key: at(full + 2), server: server{scheduler: "magic"}}, unix.ENOENT},
			}
			for i, r := range refused {
				ops[i] = r.op
			}
			if failed := k.Commit(t.Context(), []op{{verb: addDevice}}); len(failed) > 0 {
				t.Fatal(failed[0])
			}
			failed := k.Commit(t.Context(), ops)
			for i, err := range failed {
				if want := refused[i].want; want == nil || !errors.Is(err, want) {
					t.Errorf("%s, step %d, %s: %v, want %v", f, i, ops[i].text(), err, want)
				}
			}
			if err := failed[len(ops)-1]; len(failed) != len(refused) || !strings.Contains(err.Error(), "no scheduler magic") {
				t.Errorf("%s: %d refusals, want %d; the last is %v", f, len(failed), len(refused), err)
			}
			wantApplied(t, k, ops, failed)
			_ = b.Close()
		}
	})
}

// wantApplied checks that the kernel holds what the ops without failure add.
func wantApplied(t *testing.T, k *kernel, ops []op, failed map[int]error) {
	t.Helper()
	s, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	servers, dests := 0, 0
	for i, o := range ops {
		if failed[i] != nil {
			continue
		}
		held := s.servers[o.key]
		switch {
		case held == nil:
			t.Errorf("%s: not there", o.text())
		case o.verb == addServer:
			servers++
		case len(held.dests) != 1:
			t.Errorf("%s: there are %v", o.text(), held.dests)
		default:
			dests++
		}
	}
	if len(s.servers) != servers || dests == 0 {
		t.Errorf("%d virtual servers, want %d", len(s.servers), servers)
	}
}

// BenchmarkChange makes and deletes a virtual server with one destination, by our own
// requests and by the library. Run it where nothing else runs:
//
//	go test -exec 'go run kubeproxy/test/vm/run' ./platform/linux/ipvs -run '^$' -bench Change
func BenchmarkChange(b *testing.B) {
	if !Installed() {
		b.Skip("the kernel has no IPVS; go run ./test/vm/run has one")
	}
	at, to := addressAt(netip.MustParseAddr("10.96.0.1"), 80, service.TCP), netip.MustParseAddrPort("10.244.1.1:8080")
	netlab.InNamespace(b, func() {
		if err := addAddrs(); err != nil {
			b.Fatal(err)
		}
		k := newKernel(b, service.IPv4, alwaysResync()).driver.(*kernel)
		defer k.close()
		ops := []op{
			{verb: addServer, key: at, server: server{scheduler: "rr", flags: flagOwned}},
			{verb: addDest, key: at, dest: dest{addr: to, weight: 1}},
			{verb: delServer, key: at},
		}
		b.Run("own", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				for i := range ops {
					if err := k.requests.do(&ops[i]); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		s := k.moby.(*mobyClient).service(at)
		s.SchedName, s.Flags = "rr", flagOwned
		d := &ipvs.Destination{Address: to.Addr().AsSlice(), Port: to.Port(), Weight: 1, AddressFamily: unix.AF_INET}
		b.Run("library", func(b *testing.B) {
			b.ReportAllocs()
			h := k.moby.(*mobyClient)
			for b.Loop() {
				if err := errors.Join(h.NewService(s), h.NewDestination(s, d), h.DelService(s)); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}
