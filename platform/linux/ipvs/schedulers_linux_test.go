// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// TestSchedulers checks that each scheduler is found, programmed and found again by
// another process. An unknown scheduler is an error that lists the existing ones.
func TestSchedulers(t *testing.T) {
	inNamespace(t, func() {
		for _, s := range []string{"rr", "wrr", "lc", "wlc", "dh", "sh", "mh", "sed", "nq"} {
			o := Options{MasqueradeBit: 14, Scheduler: s, SyncPeriod: time.Minute}
			if err := Probe(service.IPv4, o); err != nil {
				t.Errorf("%s: %v", s, err)
				continue
			}
			want := snapshot(web(0, 3, service.TCP))
			b, fresh := newKernel(t, service.IPv4, o), newKernel(t, service.IPv4, o)
			apply(t, b, want)
			generate.RequireNoChange(t, fresh, want)
			_, _ = b.Close(), fresh.Close()
		}
		for _, s := range []string{"magic", "none", "a magic one", strings.Repeat("r", 16), strings.Repeat("r", 200)} {
			err := Probe(service.IPv4, Options{Scheduler: s})
			kit.Check(t, err != nil && strings.Contains(err.Error(), `has no scheduler "`+s+`"`) && strings.Contains(err.Error(), "it has dh, ") && strings.Contains(err.Error(), ", wrr"),
				"Probe = %v, want a list of schedulers", err)
		}
	})
}

// TestSchedulersDuringNamespaceChanges tries schedulers while network namespaces with IPVS are
// being removed, each time with modules that are not loaded. Where the kernel loads the
// module of lblc itself, no namespace of the machine can be removed any more.
func TestSchedulersDuringNamespaceChanges(t *testing.T) {
	const rounds = 5
	for _, s := range []string{"lblc", "lblcr", "magic"} {
		for range rounds {
			inNamespace(t, func() {
				for m := range perNamespace {
					_ = exec.Command("modprobe", "-r", "ip_vs_"+m).Run() // it may not be loaded
				}
				for range 3 {
					removeNamespace(t)
				}
				probeInTime(t, s)
			})
		}
	}
}

// removeNamespace makes a network namespace with IPVS, which the kernel still removes when
// this returns.
func removeNamespace(t *testing.T) {
	netlab.InNamespace(t, func() {
		err := Probe(service.IPv4, Options{Scheduler: "rr"})
		kit.Check(t, err == nil, "%v", err)
	})
}

// probeInTime tries a scheduler. magic is none.
func probeInTime(t *testing.T, scheduler string) {
	stuck := time.AfterFunc(time.Minute, func() {
		panic(scheduler + ": no answer; the machine makes and removes no network namespace any more")
	})
	defer stuck.Stop()
	err := Probe(service.IPv4, Options{Scheduler: scheduler})
	kit.Check(t, (err != nil) == (scheduler == "magic"), "%s: %v", scheduler, err)
}

// TestProbeKeepsForeignServers has foreign virtual servers where schedulers are tried,
// and one that a killed process of ours left.
func TestProbeKeepsForeignServers(t *testing.T) {
	inNamespace(t, func() {
		h, err := ipvs.New("")
		kit.Must(t, err)
		defer h.Close()
		for i, flags := range []uint32{0, flagOwned} {
			at := probeKey[service.IPv4]
			s := &ipvs.Service{
				Address: net.IP(at.Addr.AsSlice()), Port: at.Port + uint16(i), Protocol: unix.IPPROTO_TCP,
				AddressFamily: unix.AF_INET, SchedName: "wlc", Netmask: 0xffffffff, Flags: flags,
			}
			kit.Must(t, h.NewService(s))
		}
		if err := Probe(service.IPv4, Options{Scheduler: "rr"}); err != nil {
			t.Error(err)
		}
		all, err := h.GetServices()
		kit.Check(t, err == nil && len(all) == 1 && all[0].Port == probeKey[service.IPv4].Port && all[0].SchedName == "wlc",
			"%d virtual servers are left, %v, want that of others as it was", len(all), err)
	})
}

// TestKernelKeepsForeignServers checks that foreign virtual servers stay unchanged
// through syncs and a cleanup.
func TestKernelKeepsForeignServers(t *testing.T) {
	inNamespace(t, func() {
		h, err := ipvs.New("")
		kit.Must(t, err)
		defer h.Close()
		other := &ipvs.Service{
			Address: net.IP(generate.NodeAddr[0].AsSlice()), Port: 443, Protocol: unix.IPPROTO_TCP,
			AddressFamily: unix.AF_INET, SchedName: "rr", Netmask: 0xffffffff,
		}
		kit.Must(t, h.NewService(other))
		kit.Must(t, h.NewDestination(other, &ipvs.Destination{Address: net.IPv4(10, 0, 0, 1), Port: 443, Weight: 7, AddressFamily: unix.AF_INET}))
		b := newKernel(t, service.IPv4, Options{MasqueradeBit: 14, SyncPeriod: time.Minute})
		apply(t, b, snapshot(web(0, 2, service.TCP)))
		apply(t, b, snapshot())
		apply(t, b, snapshot(web(1, 2, service.TCP)))
		kit.Must(t, b.Cleanup(context.Background()))
		all, err := h.GetServices()
		kit.Check(t, err == nil && len(all) == 1 && all[0].Port == 443,
			"%d virtual servers are left, %v, want one", len(all), err)
		dests, err := h.GetDestinations(other)
		kit.Check(t, err == nil && len(dests) == 1 && dests[0].Weight == 7, "its destinations are %v, %v", dests, err)
		if what, err := (Leftovers{Family: service.IPv4}).Find(context.Background()); what != "" || err != nil {
			t.Errorf("after a cleanup there is %q, %v", what, err)
		}
		_ = b.Close()
	})
}

// TestFamiliesAtOnce programs and reads both families concurrently, in many syncs.
func TestFamiliesAtOnce(t *testing.T) {
	inNamespace(t, func() {
		here, err := netns.Get()
		if err != nil {
			t.Error(err)
			return
		}
		defer here.Close()
		var all []*Backend
		for _, f := range service.Families {
			b := newKernel(t, f, Options{MasqueradeBit: 14, SyncPeriod: time.Nanosecond})
			apply(t, b, changingSnapshot(f, 0)) // opens the last socket in this namespace
			all = append(all, b)
		}
		var working sync.WaitGroup
		for f, b := range all {
			for range 2 { // besides the one that plans
				working.Go(func() { readOften(t, b) })
			}
			working.Go(func() {
				runtime.LockOSThread() // never unlocked; commands run in the namespace of their thread
				if err := netns.Set(here); err != nil {
					t.Error(err)
				}
				for n := range 30 {
					round, err := b.Plan(t.Context(), changingSnapshot(service.Family(f), n))
					if err == nil && !round.Empty() {
						err = round.Apply(t.Context()).Err
					}
					kit.Check(t, err == nil, "round %d: %v", n, err)
				}
			})
		}
		working.Wait()
		for _, b := range all {
			_ = b.Close()
		}
	})
}

// TestListDuringDeletesOfOtherFamily checks that deletes in one family make lists of the
// other leave out nothing.
func TestListDuringDeletesOfOtherFamily(t *testing.T) {
	inNamespace(t, func() {
		four, six := newKernel(t, service.IPv4, alwaysResync()), newKernel(t, service.IPv6, alwaysResync())
		var ports []*service.Port
		for i := range 200 {
			ports = append(ports, web(i, 1, service.TCP))
		}
		want := snapshot(ports...)
		apply(t, four, want)
		ctx, cancel := context.WithCancel(t.Context())
		var changing sync.WaitGroup
		changing.Go(func() {
			for ctx.Err() == nil {
				addAndDelete(t, six.driver, 8)
			}
		})
		for range 20 {
			if p := planOf(t, four, want); !p.Empty() || len(p.Outcome().Drift) > 0 {
				t.Errorf("the drift is %q, and to do:\n%s", p.Outcome().Drift, p.Changes())
				break
			}
		}
		cancel()
		changing.Wait()
		_, _ = four.Close(), six.Close()
	})
}

// addAndDelete creates n IPv6 virtual servers and deletes them.
func addAndDelete(t *testing.T, d Driver, n int) {
	for _, v := range []verb{addServer, delServer} {
		var ops []op
		for i := range n {
			k := addressAt(generate.NodeAddr[1], uint16(i+1), service.TCP)
			ops = append(ops, op{verb: v, key: k, server: server{scheduler: "rr", flags: flagOwned}})
		}
		failed := d.Commit(t.Context(), ops)
		kit.Check(t, len(failed) == 0, "%v", failed)
	}
}

// readOften uses a driver concurrently with its other users.
func readOften(t *testing.T, b *Backend) {
	for range 100 {
		_, err := b.driver.NodeAddrs(t.Context())
		kit.Check(t, err == nil, "Addrs: %v", err)
		_, err = b.driver.Dests(t.Context(), probeKey[b.family])
		kit.Check(t, err == nil, "Dests: %v", err)
		failed := b.driver.Commit(t.Context(), []op{{verb: delServer, key: probeKey[b.family]}})
		kit.Check(t, errors.Is(failed[0], errMissing), "Commit: %v, want %v", failed[0], errMissing)
		runtime.Gosched()
	}
}

// changingSnapshot is the n-th of changing snapshots.
func changingSnapshot(f service.Family, n int) *service.Snapshot {
	var ports []*service.Port
	for i := range 5 {
		p := web(i, 1+(n+i)%4, service.TCP)
		if f == service.IPv6 {
			p.Family = f
			p.Frontends[0].Addr = generate.NthAddr("fd00:10:96::", i)
			for e := range p.Cluster {
				p.Cluster[e].Addr = addrPort6(e)
			}
		}
		ports = append(ports, p)
	}
	return snapshot(ports...)
}

func addrPort6(e int) netip.AddrPort {
	return netip.AddrPortFrom(generate.NthAddr("fd00:10:244:1::", e+1), 8080)
}
