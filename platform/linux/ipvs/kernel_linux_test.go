// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// inNamespace runs f on a thread in a network namespace of its own, which ends with the
// thread. The node's addresses are on its loopback interface.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	if !Installed() {
		t.Skip("the kernel has no IPVS; make vm runs this on one that has")
	}
	netlab.InNamespace(t, func() {
		if err := addAddrs(); err != nil {
			t.Errorf("give the node its addresses: %v", err)
			return
		}
		f()
	})
}

func addAddrs() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, f := range service.Families {
		for _, a := range []net.IP{generate.NodeAddr[f].AsSlice(), generate.OtherNodeAddr[f].AsSlice()} {
			bits := 8 * len(a)
			x := &netlink.Addr{IPNet: &net.IPNet{IP: a, Mask: net.CIDRMask(bits, bits)}, Flags: unix.IFA_F_NODAD}
			if err := netlink.AddrAdd(lo, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// newMobyHandle returns a second client of IPVS, until t ends.
func newMobyHandle(t *testing.T) *ipvs.Handle {
	t.Helper()
	h, err := ipvs.New("")
	kit.Must(t, err)
	t.Cleanup(h.Close)
	return h
}

func newKernel(t fataler, f service.Family, o Options) *Backend {
	b, err := New(f, o)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return b
}

// someDraws is rapid.Check with fewer draws, unless a number is requested: an emulated
// processor needs seconds for each.
func someDraws(t *testing.T, check func(*rapid.T)) {
	t.Helper()
	if n := flag.Lookup("rapid.checks"); n.Value.String() == n.DefValue {
		kit.Must(t, n.Value.Set("20"))
		defer func() { _ = n.Value.Set(n.DefValue) }()
	}
	rapid.Check(t, check)
}

// TestKernelHoldsWhatWasPlanned programs random snapshots one after the other, and
// checks that a second backend without state finds nothing to do.
func TestKernelHoldsWhatWasPlanned(t *testing.T) {
	inNamespace(t, func() {
		someDraws(t, func(t *rapid.T) {
			w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
			b := newKernel(t, w.Family, Options{MasqueradeBit: 14, SyncPeriod: time.Minute})
			defer func() { _ = b.Close() }()
			for n := range 3 {
				want := service.New(uint64(n), w.Node(), w.Ports())
				apply(t, b, want)
				b.lastDrainCheck = time.Time{}
				apply(t, b, want) // destinations without connections have drained
				fresh := newKernel(t, w.Family, Options{MasqueradeBit: 14, SyncPeriod: time.Minute})
				generate.RequireNoChange(t, fresh, want)
				_ = fresh.Close()
			}
			if err := b.Cleanup(context.Background()); err != nil {
				t.Fatalf("Cleanup: %v", err)
			}
		})
	})
}

// codes are what a kernel refuses with.
var codes = [...]unix.Errno{unix.EBUSY, unix.ENOENT, unix.EEXIST, unix.ENOBUFS, unix.ESRCH, unix.EINTR, unix.ENOMEM}

// unreliable is a kernel that fails: it refuses some requests, and executes others but
// reports that it refused them.
type unreliable struct {
	Driver
	fails func(what string) bool
	code  func() unix.Errno
}

func (u *unreliable) refusal() error { return fmt.Errorf("injected: %w", driverError(u.code())) }

func (u *unreliable) Commit(ctx context.Context, ops []op) map[int]error {
	var pass []op
	var index []int
	failed := map[int]error{}
	broken := false
	for i, o := range ops {
		broken = broken || u.fails("the rest of a batch")
		deletes := o.verb == delServer || o.verb == delDest || o.verb == delRoute
		if broken || u.fails("an op") {
			failed[i] = u.refusal()
			if deletes { // a kernel that reports an object as missing is right
				failed[i] = fmt.Errorf("injected: %w", unix.EBUSY)
			}
		}
		if failed[i] == nil || u.fails("only an answer") {
			pass, index = append(pass, o), append(index, i)
		}
	}
	for j, err := range u.Driver.Commit(ctx, pass) {
		failed[index[j]] = err
	}
	return failed
}

func (u *unreliable) Read(ctx context.Context) (*state, error) {
	if u.fails("a list") {
		return nil, u.refusal()
	}
	return u.Driver.Read(ctx)
}

func (u *unreliable) Dests(ctx context.Context, k service.Address) ([]dest, error) {
	if u.fails("a list") {
		return nil, u.refusal()
	}
	return u.Driver.Dests(ctx, k)
}

// TestKernelConvergesAfterRefusals refuses ops at random in some syncs. The first sync
// without refusals must reach the desired state.
func TestKernelConvergesAfterRefusals(t *testing.T) {
	inNamespace(t, func() {
		someDraws(t, func(t *rapid.T) {
			w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
			b := newKernel(t, w.Family, Options{MasqueradeBit: 14, SyncPeriod: time.Hour})
			u := &unreliable{
				Driver: b.driver, fails: func(what string) bool { return w.DrawInt(what, 12) == 0 },
				code: func() unix.Errno { return codes[w.DrawInt("code", len(codes))] },
			}
			var want *service.Snapshot
			node := w.Node() // another node would cause a full comparison
			for n := range 3 {
				want = service.New(uint64(n), node, w.Ports())
				b.driver = u
				if p, err := b.Plan(t.Context(), want); err == nil && !p.Empty() {
					_ = p.Apply(t.Context()).Err
				}
				b.driver = u.Driver
			}
			wantConverged(t, b, want)
			if err := b.Cleanup(t.Context()); err != nil {
				t.Fatalf("Cleanup: %v", err)
			}
			_ = b.Close()
		})
	})
}

// TestAlteredServedSet checks that a set of virtual servers that another process swapped
// for a smaller one counts as missing, and is created again.
func TestAlteredServedSet(t *testing.T) {
	if _, err := exec.LookPath("ipset"); err != nil {
		t.Skipf("needs the command: %v", err)
	}
	netlab.InNamespace(t, func() {
		k := &kernel{family: service.IPv4}
		addr := netip.MustParseAddr("192.0.2.1")
		wantSets := func(want bool) {
			t.Helper()
			s := &state{}
			err := k.readSets(s)
			kit.Check(t, err == nil && s.hasSets == want && s.addrSet[addr], "sets there %t with addresses %v, %v; want %t", s.hasSets, s.addrSet, err, want)
		}
		do := func(v verb) {
			t.Helper()
			err := k.applySetOp(&op{verb: v, route: localRoute{addr: addr}})
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			kit.Must(t, err)
		}
		do(addSets)
		do(addAddrToSet)
		wantSets(true)
		served := setOf(k.family, virtualServerSet)
		for _, args := range [][]string{
			{"create", "OTHER", string(served.Type), "comment", "maxelem", "9"}, {"swap", "OTHER", served.Name}, {"destroy", "OTHER"},
		} {
			out, err := exec.Command("ipset", args...).CombinedOutput()
			kit.Need(t, err == nil, "ipset %v: %v\n%s", args, err, out)
		}
		wantSets(false)
		do(addSets)
		wantSets(true)
		_ = k.sets.Close()
	})
}

// staleFamilyID is an unused generic netlink family ID, as that of IPVS after a reload
// of its module.
const staleFamilyID = 0x3ff

// staleClient is a library with an old family ID of IPVS.
type staleClient struct{}

func (staleClient) listServers() (map[service.Address]*observedServer, error) {
	return nil, unix.ENOENT
}
func (staleClient) getServer(service.Address) (server, error) { return server{}, unix.ENOENT }
func (staleClient) listDests(service.Address) ([]dest, error) { return nil, unix.ENOENT }
func (staleClient) getTimeouts() (timeouts, error)            { return timeouts{}, unix.ENOENT }
func (staleClient) setTimeouts(timeouts) error                { return unix.ENOENT }
func (staleClient) Close()                                    {}

// TestKernelModuleReloaded checks that every request finds IPVS after a reload of its
// module.
func TestKernelModuleReloaded(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, alwaysResync())
			k := b.driver.(*kernel)
			at := addressAt(generate.NthAddr([]string{"10.96.0.0", "fd00:10:96::"}[f], 1), 80, service.TCP)
			asked := map[string]func() error{
				"Commit": func() error {
					return k.Commit(t.Context(), []op{{verb: addServer, key: at, server: server{scheduler: "rr", flags: flagOwned}}})[0]
				},
				"Read": func() error {
					s, err := k.Read(t.Context())
					if err == nil && s.servers[at] == nil {
						return errMissing
					}
					return err
				},
				"Server": func() error { _, err := k.Server(t.Context(), at); return err },
				"Dests":  func() error { _, err := k.Dests(t.Context(), at); return err },
				"times":  func() error { _, err := callClient(k, client.getTimeouts); return err },
				"setTimes": func() error {
					_, err := callClient(k, func(a client) (int, error) { return 0, a.setTimeouts(timeouts{udp: 99 * time.Second}) })
					return err
				},
				"try": func() error { return k.probeScheduler("rr") },
			}
			k.moby.Close()
			for _, name := range []string{"Commit", "Read", "Server", "Dests", "times", "setTimes", "try"} {
				k.requests.familyID, k.requests.lookupTime = staleFamilyID, 0
				k.moby, k.reloaded = staleClient{}, false
				if err := asked[name](); err != nil || k.requests.familyID == staleFamilyID || (name != "Read") != (k.requests.lookupTime > 0) {
					t.Errorf("%s, %s: %v, by the number %#x, found in %s", f, name, err, k.requests.familyID, k.requests.lookupTime)
				}
			}
			// ENOENT with another cause is returned unchanged.
			err := k.requests.do(&op{verb: setServer, key: at, server: server{scheduler: "magic"}})
			kit.Check(t, errors.Is(err, unix.ENOENT), "%s: %v for a scheduler that the kernel has not", f, err)
			_ = b.Close()
		}
	})
}

// TestNetlinkMatchesLibrary checks that our queries and the library return the same.
func TestNetlinkMatchesLibrary(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, alwaysResync())
			apply(t, b, changingSnapshot(f, 0))
			k := b.driver.(*kernel)
			k.reloaded = true // uses the requester
			s, err := k.Read(t.Context())
			kit.Must(t, err)
			for at, l := range s.servers {
				asked, err := k.Dests(t.Context(), at)
				kit.Check(t, err == nil && slices.Equal(asked, l.dests),
					"%s: %v, %v by netlink, %v in the list", at, asked, err, l.dests)
			}
			wantLibrarySees(t, k, s)
			_ = b.Close()
		}
	})
}

// wantLibrarySees checks that the library returns the virtual servers in s.
func wantLibrarySees(t *testing.T, k *kernel, s *state) {
	t.Helper()
	all, err := newMobyHandle(t).GetServices()
	kit.Must(t, err)
	for _, x := range all {
		found := slices.ContainsFunc(sortedKeys(s.servers), func(at service.Address) bool {
			have := server{x.SchedName, x.Flags, x.Timeout}
			return x.Address.Equal(at.Addr.AsSlice()) && x.Port == at.Port && x.Protocol == uint16(at.Protocol) && s.servers[at].server == have
		})
		if !found && x.AddressFamily == af(k.family) {
			t.Errorf("the library hears of %+v, and we of %v", x, sortedKeys(s.servers))
		}
	}
	kit.Check(t, len(s.servers) != 0, "there is no virtual server")
}

// FuzzAnswers checks that truncated or empty replies do no harm.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x0c\x00\x01\x80\x05\x00\x04\x00P\x00\x00\x00"))
	f.Add([]byte(strings.Repeat("\x08\x00\x01\x80\x04\x00\x03\x00", 3)))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_, _ = parseServer(text)
		_, _ = parseDestination(text, service.IPv6)
	})
}

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
	kit.Must(t, err)
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
	kit.Check(t, len(s.servers) == servers && dests != 0, "%d virtual servers, want %d", len(s.servers), servers)
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
		kit.Must(b, addAddrs())
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
					kit.Must(b, k.requests.do(&ops[i]))
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
				kit.Must(b, errors.Join(h.NewService(s), h.NewDestination(s, d), h.DelService(s)))
			}
		})
	})
}
