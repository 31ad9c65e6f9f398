// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// fake is a kernel whose dumps return each matching entry twice. Its node has the address
// 192.0.2.1.
type fake struct {
	t          *testing.T
	table      []Flow
	dumps      []Filter
	batches    []int
	localCalls []netip.Addr

	dumpDelay time.Duration // of each dump

	dumpErr, deleteErr, localErr error
}

func (fa *fake) Dump(_ context.Context, f Filter, each func(Flow)) error {
	fa.dumps = append(fa.dumps, f)
	time.Sleep(fa.dumpDelay)
	for _, e := range slices.Clone(fa.table) {
		if service.FamilyOf(e.Dst.Addr()) == f.Family && e.Protocol == f.Protocol &&
			(!f.Addr.IsValid() || f.Addr == e.Dst.Addr()) && (f.Port == 0 || f.Port == e.Dst.Port()) {
			each(e)
		}
	}
	return fa.dumpErr
}

func (fa *fake) Delete(_ context.Context, flows []Flow) (int, error) {
	fa.batches = append(fa.batches, len(flows))
	if fa.deleteErr != nil {
		return 0, fa.deleteErr
	}
	before := len(fa.table)
	fa.table = slices.DeleteFunc(fa.table, func(f Flow) bool { return slices.Contains(flows, f) })
	return before - len(fa.table), nil
}

func (fa *fake) Local(_ context.Context, a netip.Addr) (bool, error) {
	fa.localCalls = append(fa.localCalls, a)
	return a == addr("192.0.2.1") && fa.localErr == nil, fa.localErr
}

func (fa *fake) expect(want ...Flow) {
	fa.t.Helper()
	d := cmp.Diff(want, fa.table, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.AddrPort{}))
	kit.Check(fa.t, d == "", "entries left (-want +got):\n%s", d)
}

// sync checks that Sync deletes want entries and returns wantErr.
func (fa *fake) sync(r *Reconciler, now *service.Snapshot, want int, wantErr error) {
	fa.t.Helper()
	n, err := r.Sync(fa.t.Context(), now)
	kit.Check(fa.t, n == want && errors.Is(err, wantErr), "Sync = %d, %v, want %d, %v", n, err, want, wantErr)
}

func snapshot(ports ...*service.Port) *service.Snapshot {
	return service.New(1, &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, ports)
}

func TestSyncChecksChangesOnly(t *testing.T) {
	good, other := flow("10.96.0.10:53", epA), flow("203.0.113.9:53", epC)
	k := &fake{t: t, table: []Flow{good, flow("10.96.0.10:53", epB), other}}
	r := &Reconciler{Driver: k}
	late := port("late", service.IPv4, ats(epA), service.Frontend{Kind: service.ExternalIP, Addr: addr("203.0.113.9"), Port: 53})

	k.sync(r, snapshot(udp(epA)), 1, nil)
	k.expect(good, other)
	k.dumps = nil
	k.sync(r, snapshot(udp(epA)), 0, nil)
	kit.Check(t, len(k.dumps) == 0, "dumps without a change: %v", k.dumps)
	k.sync(r, snapshot(udp(epA), late), 1, nil)
	want := []Filter{{Protocol: service.UDP, Addr: addr("203.0.113.9"), Port: 53}}
	kit.Check(t, slices.Equal(want, k.dumps), "dumps = %v, want %v", k.dumps, want)
	k.expect(good)

	stale := flow("10.96.0.10:53", epC) // stale for an unknown reason
	k.table = append(k.table, stale)
	k.sync(r, snapshot(udp(epA), late), 0, nil)
	k.expect(good, stale)
	r.Resync()
	k.sync(r, snapshot(udp(epA), late), 1, nil)
	k.expect(good)
}

// A failed sync must not lose the removed endpoints.
func TestSyncTriesAgain(t *testing.T) {
	for name, fail := range map[string]func(*fake, error){
		"dump":   func(k *fake, err error) { k.dumpErr = err },
		"delete": func(k *fake, err error) { k.deleteErr = err },
		"local":  func(k *fake, err error) { k.localErr = err },
	} {
		t.Run(name, func(t *testing.T) {
			k := &fake{t: t}
			r := &Reconciler{Driver: k}
			k.sync(r, snapshot(udp(epA)), 0, nil)
			k.table = []Flow{flow("192.0.2.1:30053", epA)}
			broken := errors.New("broken")
			fail(k, broken)
			n, err := r.Sync(t.Context(), snapshot())
			kit.Check(t, errors.Is(err, broken), "Sync = %d, %v, want %v", n, err, broken)
			fail(k, nil)
			_, err = r.Sync(t.Context(), snapshot())
			kit.Check(t, err == nil, "Sync = %v", err)
			k.expect()
		})
	}
}

func TestReconcileNodePorts(t *testing.T) {
	elsewhere := flow("192.0.2.7:30053", epB)   // in the prefix, but of another node
	notAnswering := flow("10.9.9.9:30053", epB) // outside of nodePortAddresses
	loopback := flow("127.0.0.1:30053", epB)
	claimed := flow("192.0.2.1:30054", epC)
	k := &fake{t: t, table: []Flow{flow("192.0.2.1:30053", epB), elsewhere, elsewhere, notAnswering, loopback, claimed}}
	dns, own := udp(epA), port("own", service.IPv4, ats(epC), service.Frontend{Kind: service.ExternalIP, Addr: addr("192.0.2.1"), Port: 30054})
	now := snapshot(dns, own)
	n, err := (&Reconciler{Driver: k}).Reconcile(t.Context(),
		[]Rule{rule(nodePort, epA), rule(service.Frontend{Port: 30054}, epA)}, now)
	kit.Check(t, n == 1 && err == nil, "Reconcile = %d, %v, want 1", n, err)
	k.expect(elsewhere, elsewhere, notAnswering, loopback, claimed)
	want := []netip.Addr{addr("192.0.2.1"), addr("192.0.2.7")}
	kit.Check(t, slices.Equal(want, k.localCalls), "asked for %v, want %v, each once", k.localCalls, want)
}

func TestReconcileInBatches(t *testing.T) {
	k := &fake{t: t}
	for i := range 300 {
		f := flow("10.96.0.10:53", epA)
		f.ID = uint32(i)
		k.table = append(k.table, f)
	}
	n, err := (&Reconciler{Driver: k}).Reconcile(t.Context(), []Rule{gone(clusterIP)}, snapshot())
	want := []int{batch, batch, 300 - 2*batch}
	kit.Check(t, n == 300 && err == nil && slices.Equal(want, k.batches), "Reconcile = %d, %v in batches of %v, want 300 in %v", n, err, k.batches, want)
	k.expect()
}

// TestSyncSaysOnceThatAModuleIsMissing checks that Sync does not ask a kernel without the
// module for connections, too, and that nothing is lost meanwhile.
func TestSyncSaysOnceThatAModuleIsMissing(t *testing.T) {
	missing := &MissingModuleError{Module: "nf_conntrack_netlink", Err: errors.New("invalid argument")}
	k := &fake{t: t, table: []Flow{flow("10.96.0.10:53", epB)}, dumpErr: missing}
	r := &Reconciler{Driver: k}
	s := snapshot(udp(epA), with(udp(epA), func(p *service.Port) { p.Name.Protocol = service.TCP }))
	_, err := r.Sync(t.Context(), s)
	want := "list IPv4 conntrack entries: the kernel lacks the module nf_conntrack_netlink: load it with modprobe"
	kit.Check(t, err != nil && err.Error() == want && len(k.dumps) == 1,
		"Sync = %v after %d dumps, want %s after one", err, len(k.dumps), want)
	k.dumpErr, k.dumps = nil, nil
	if _, err := r.Sync(t.Context(), s); err != nil || r.ResyncAfter() != 0 {
		t.Errorf("with the module: %v, and again after %s", err, r.ResyncAfter())
	}
	kit.Check(t, r.connections.synced == s && !r.connections.fullResync && r.datagrams.synced == s,
		"not all is synced: %+v, %+v", r.connections, r.datagrams)
}

func TestReconcileReports(t *testing.T) {
	k := &fake{t: t, table: []Flow{flow("10.96.0.10:53", epB), flow("192.0.2.1:30053", epB)},
		dumpErr: errors.ErrUnsupported, deleteErr: errors.New("no"), localErr: errors.New("who knows")}
	_, err := (&Reconciler{Driver: k}).Reconcile(t.Context(), []Rule{rule(nodePort, epA), rule(clusterIP, epA)}, snapshot())
	kit.Check(t, errors.Is(err, errors.ErrUnsupported) && len(k.dumps) == 1,
		"Reconcile = %v after %d dumps, want one dump and %v", err, len(k.dumps), errors.ErrUnsupported)
	for _, part := range []string{"list IPv4 conntrack entries", "whether 192.0.2.1 is the node's"} {
		kit.Check(t, err != nil && strings.Contains(err.Error(), part), "Reconcile = %v, which lacks %q", err, part)
	}
}

// syn returns the entry of a client that waits for a reply from by.
func syn(by string) Flow {
	f := flow("10.96.0.10:53", by)
	f.Protocol, f.State = service.TCP, tcpSynSent
	return f
}

// If dumps take long, connections are checked less often than datagrams, and every check
// happens in the end.
func TestConnectionScansAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 100 * time.Millisecond
		k := &fake{t: t, dumpDelay: slow}
		r := &Reconciler{Driver: k}
		both := func(endpoint string) *service.Snapshot {
			web := *udp(endpoint)
			web.Name.Name, web.Name.Protocol = "web", service.TCP
			return snapshot(udp(endpoint), &web)
		}
		scans, left := 0, 0
		for i := range 20 {
			endpoint := []string{epA, epB}[i%2]
			gone := []string{epB, epA}[i%2]
			k.table = []Flow{flow("10.96.0.10:53", gone), syn(gone)}
			_, err := r.Sync(t.Context(), both(endpoint))
			kit.Must(t, err)
			if len(k.table) == 0 {
				scans++
			} else if k.expect(syn(gone)); r.ResyncAfter() <= 0 {
				t.Errorf("Due = %v with a connection left", r.ResyncAfter())
			}
			left = len(k.table)
		}
		kit.Check(t, scans >= 1 && scans <= 5 && left != 0,
			"connections were looked at %d times in 20 rounds at once, the last time too: %v", scans, left == 0)
		time.Sleep(r.ResyncAfter())
		k.sync(r, both(epB), 1, nil)
		k.expect()
		kit.Check(t, r.ResyncAfter() == 0, "Due = %v with nothing left", r.ResyncAfter())
	})
}

// TestEntries looks up a client's entries among those of others, and checks which ones a
// Reconciler deletes.
func TestEntries(t *testing.T) {
	at := netip.MustParseAddrPort
	client, to, endpoint, gone := at("10.244.1.7:1001"), at("10.96.0.10:53"), at("10.244.2.1:53"), at("10.244.2.2:53")
	p := &service.Port{
		Name: service.PortName{Namespace: "dns", Name: "dns", Protocol: service.UDP}, Family: service.IPv4,
		Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: to.Addr(), Port: to.Port()}},
		Cluster:   []service.Endpoint{{Addr: endpoint}},
	}
	flow := func(src, dst, replySrc netip.AddrPort) Flow {
		return Flow{Protocol: service.UDP, Src: src, Dst: dst, ReplySrc: replySrc, ReplyDst: src}
	}
	other := netip.AddrPortFrom(client.Addr(), 1002)
	k := &fake{table: []Flow{
		flow(other, to, gone), flow(client, to, endpoint), flow(client, at("10.96.0.11:53"), gone), flow(at("10.244.1.8:1001"), to, gone),
	}}
	got, err := Entries(t.Context(), k, service.New(1, &service.Node{}, []*service.Port{p}), Client{service.UDP, client.Addr(), to})
	kit.Check(t, err == nil && len(got) == 2 && got[0].Src == client && !got[0].Stale && got[1].Src == other && got[1].Stale,
		"%+v, %v; want a good and a stale one", got, err)
	k.table[0].Expires = 20
	got, _ = Entries(t.Context(), k, service.New(1, &service.Node{}, []*service.Port{p}), Client{service.UDP, client.Addr(), to})
	kit.Check(t, got[0].Src == other, "%+v; want the one with the latest packet first", got)
}

func TestEnded(t *testing.T) {
	for state := range uint8(10) {
		f := Flow{Protocol: service.TCP, State: state, Answered: state != tcpSynSent}
		if want := state == 6 || state == 7 || state == 8; f.Ended() != want || f.Opening() != (state == 1) {
			t.Errorf("state %d: ended %t, opening %t", state, f.Ended(), f.Opening())
		}
		f.Protocol = service.SCTP
		kit.Check(t, !f.Ended(), "state %d of SCTP has ended", state)
	}
}
