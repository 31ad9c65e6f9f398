// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/test/kit"
)

// flows returns n entries with a reply, from the client to dst, translated to by. The
// entries for different endpoints and ports do not collide.
func (tn testNet) flows(n int, dst, by netip.AddrPort) []Flow {
	first := 1024 + 500*int(by.Addr().As16()[15]) + int(dst.Port())
	flows := make([]Flow, n)
	for i := range flows {
		src := to(tn.client, uint16(first+i))
		flows[i] = Flow{Protocol: service.UDP, Src: src, Dst: dst, ReplySrc: by, ReplyDst: src, Answered: true}
	}
	return flows
}

// dumped returns the entries of a dump, sorted.
func dumped(t *testing.T, f Filter) []Flow {
	t.Helper()
	var all []Flow
	kit.Must(t, Netlink{}.Dump(t.Context(), f, func(f Flow) { all = append(all, f) }))
	return sorted(all)
}

func sorted(flows []Flow) []Flow {
	slices.SortFunc(flows, func(a, b Flow) int {
		return cmp.Or(a.Dst.Compare(b.Dst), a.Src.Compare(b.Src), cmp.Compare(a.Zone, b.Zone))
	})
	return flows
}

// diff compares entries without their IDs and their ends.
func diff(want, got []Flow) string {
	return gocmp.Diff(want, got, cmpopts.IgnoreFields(Flow{}, "ID", "Expires", "Since"), cmpopts.EquateEmpty(),
		cmpopts.EquateComparable(netip.AddrPort{}))
}

func TestDump(t *testing.T) {
	for _, f := range service.Families {
		p := newAddresses(f)
		dns, other, quic := p.flows(3, to(p.vip, 53), p.a), p.flows(2, to(p.vip2, 53), p.b), p.flows(1, to(p.vip, 443), p.b)
		zoned := p.flows(1, to(p.vip, 53), p.b)
		zoned[0].Zone, zoned[0].ReplyZone = 7, 7
		all := slices.Concat(dns, zoned, quic, other)
		tests := map[string]struct {
			filter   Filter
			v4, both []Flow // both if the families do not differ
		}{
			"the family":           {Filter{Family: f}, nil, all},
			"a protocol":           {Filter{Family: f, Protocol: service.UDP}, nil, all},
			"a protocol not there": {Filter{Family: f, Protocol: service.SCTP}, nil, nil},
			"an address":           {Filter{Family: f, Protocol: service.UDP, Addr: p.vip}, slices.Concat(dns, zoned, quic), all},
			"a port":               {Filter{Family: f, Protocol: service.UDP, Port: 53}, nil, slices.Concat(dns, zoned, other)},
			"address and port":     {Filter{Family: f, Protocol: service.UDP, Addr: p.vip, Port: 53}, slices.Concat(dns, zoned), slices.Concat(dns, zoned, other)},
		}
		for name, test := range tests {
			t.Run(f.String()+" "+name, func(t *testing.T) {
				isolate(t)
				inject(t, all)
				want := test.both
				if f == service.IPv4 && test.v4 != nil {
					want = test.v4
				}
				d := diff(sorted(slices.Clone(want)), dumped(t, test.filter))
				kit.Check(t, d == "", "entries (-want +got):\n%s", d)
			})
		}
	}
}

func TestDelete(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			isolate(t)
			p := newAddresses(f)
			keep, lose := p.flows(2, to(p.vip2, 53), p.b), p.flows(300, to(p.vip, 53), p.a)
			lose[7].Zone, lose[7].ReplyZone = 7, 7
			twin := lose[3]
			twin.Zone, twin.ReplyZone = 9, 9
			keep = append(keep, twin)
			inject(t, slices.Concat(keep, lose))
			have := slices.DeleteFunc(dumped(t, Filter{Family: f}), func(f Flow) bool {
				return f.Dst.Addr() != p.vip || f.Zone == 9
			})
			for _, want := range []int{len(lose), 0} { // the second time none is left
				n, err := (Netlink{}).Delete(t.Context(), have)
				kit.Check(t, n == want && err == nil, "Delete = %d, %v, want %d", n, err, want)
			}
			d := diff(sorted(keep), dumped(t, Filter{Family: f}))
			kit.Check(t, d == "", "entries left (-want +got):\n%s", d)
		})
	}
}

// An entry that replaced the one that was found must stay. It results from the new rules,
// or does not belong to a Service.
func TestDeleteKeepsSuccessor(t *testing.T) {
	p := newAddresses(service.IPv4)
	found := p.flows(1, to(p.vip, 53), p.a)[0]
	moved, direct := found, found
	moved.ReplySrc, direct.Dst = p.b, p.a
	for name, successor := range map[string]Flow{"to another endpoint": moved, "to the endpoint itself": direct} {
		t.Run(name, func(t *testing.T) {
			isolate(t)
			inject(t, []Flow{found})
			old := dumped(t, Filter{Family: service.IPv4})
			n, err := (Netlink{}).Delete(t.Context(), old)
			kit.Need(t, n == 1 && err == nil, "Delete = %d, %v, want 1", n, err)
			inject(t, []Flow{successor})
			if n, err := (Netlink{}).Delete(t.Context(), old); n != 0 || err != nil {
				t.Errorf("Delete = %d, %v, want 0", n, err)
			}
			d := diff([]Flow{successor}, dumped(t, Filter{Family: service.IPv4}))
			kit.Check(t, d == "", "entries left (-want +got):\n%s", d)
		})
	}
}

// A connection that got a reply after it was found must stay, whatever its ID.
func TestDeleteKeepsEstablished(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			isolate(t)
			p := newAddresses(f)
			all := p.flows(3, to(p.vip, 80), p.a)
			all = append(all, p.flows(1, to(p.vip, 53), p.b)...)
			for i := range all[:3] {
				all[i].Protocol, all[i].State, all[i].Answered = service.TCP, tcpSynSent, false
			}
			all[1].State, all[1].Answered = 3, true
			inject(t, all)
			found := dumped(t, Filter{Family: f})
			for i := range found {
				if found[i].Protocol == service.TCP { // its state a moment before
					found[i].State, found[i].Answered = tcpSynSent, false
				}
			}
			n, err := (Netlink{}).Delete(t.Context(), found)
			kit.Check(t, n == 3 && err == nil, "Delete = %d, %v, want 3", n, err)
			d := diff(all[1:2], dumped(t, Filter{Family: f}))
			kit.Check(t, d == "", "entries left (-want +got):\n%s", d)
		})
	}
}

// The state distinguishes entries without a reply. A dump with OneWay omits the others if
// the kernel supports that.
func TestDumpStates(t *testing.T) {
	isolate(t)
	kit.Must(t, os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_timestamp", []byte("1"), 0))
	p := newAddresses(service.IPv4)
	all := p.flows(4, to(p.vip, 80), p.a)
	for i := range all {
		all[i].Protocol, all[i].State, all[i].Answered, all[i].Owed = service.TCP, uint8(i+1), i > 0, i == 2
	}
	inject(t, all)
	d := diff(sorted(slices.Clone(all)), dumped(t, Filter{Family: service.IPv4, Protocol: service.TCP}))
	kit.Check(t, d == "", "entries (-want +got):\n%s", d)
	some := dumped(t, Filter{Family: service.IPv4, Protocol: service.TCP, OneWay: true})
	kit.Check(t, (len(some) == 1 || len(some) == len(all)) && diff(all[:1], some[:1]) == "" && some[0].Expires >= 3000 && time.Since(some[0].Since) <= time.Minute,
		"entries without answer: %v", some)
	some = dumped(t, Filter{Family: service.IPv4, Protocol: service.TCP, Translated: true})
	kit.Check(t, len(some) == 0 || len(some) == len(all), "entries that rules translated: %v", some)
	six := newAddresses(service.IPv6)
	other := six.flows(1, to(six.vip, 80), six.a)
	other[0].Protocol, other[0].State, other[0].Answered = service.TCP, 1, false
	inject(t, other)
	both := dumped(t, Filter{AllFamilies: true, OneWay: true})
	kit.Check(t, (len(both) == 2 || len(both) == len(all)+1) && diff([]Flow{all[0], other[0]}, []Flow{both[0], both[len(both)-1]}) == "",
		"entries of both families without answer: %v", both)
}

// A message without a tuple would flush the table.
func TestDeleteRefusesEmptyFlow(t *testing.T) {
	isolate(t)
	p := newAddresses(service.IPv4)
	inject(t, p.flows(2, to(p.vip, 53), p.a))
	want := dumped(t, Filter{Family: service.IPv4})
	for _, f := range []Flow{{}, {Protocol: service.UDP, ID: 1}, {ReplySrc: p.a}, {ReplyDst: p.a}} {
		n, err := (Netlink{}).Delete(t.Context(), []Flow{want[0], f})
		kit.Check(t, n == 0 && err != nil, "Delete(%v) = %d, %v, want an error", f, n, err)
	}
	d := diff(want, dumped(t, Filter{Family: service.IPv4}))
	kit.Check(t, d == "", "entries left (-want +got):\n%s", d)
}

func TestRetryDump(t *testing.T) {
	narrow, wide := Filter{Protocol: service.UDP, Port: 53}, Filter{}
	tests := map[string]struct {
		errs  []error // of the attempts in order
		tried []Filter
		want  error
	}{
		"at once":             {[]error{nil}, []Filter{narrow}, nil},
		"overrun":             {[]error{unix.ENOBUFS, unix.EINTR, nil}, []Filter{narrow, narrow, narrow}, nil},
		"no memory":           {[]error{unix.ENOMEM, unix.ENOMEM, nil}, []Filter{narrow, narrow, narrow}, nil},
		"overrun for ever":    {slices.Repeat([]error{unix.ENOBUFS}, 5), slices.Repeat([]Filter{narrow}, 5), unix.ENOBUFS},
		"filter refused":      {[]error{unix.EOPNOTSUPP, nil}, []Filter{narrow, wide}, nil},
		"not there":           {[]error{unix.EINVAL, unix.EINVAL}, []Filter{narrow, wide}, errors.ErrUnsupported},
		"not allowed":         {[]error{unix.EPERM}, []Filter{narrow}, unix.EPERM},
		"refused and overrun": {[]error{unix.EINVAL, unix.EINTR, nil}, []Filter{narrow, wide, wide}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var tried []Filter
			err := retryDump(narrow, func(f Filter) error {
				tried = append(tried, f)
				return test.errs[len(tried)-1]
			})
			kit.Check(t, errors.Is(err, test.want) && slices.Equal(test.tried, tried),
				"persist = %v after %v, want %v after %v", err, tried, test.want, test.tried)
		})
	}
}

func TestLocal(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			isolate(t)
			p := newTestNet(t, f)
			for addr, want := range map[netip.Addr]bool{
				p.node:                        true,
				p.a.Addr():                    true,
				p.remote:                      false,
				p.remote.Next():               false, // there is no route
				netip.IPv6LinkLocalAllNodes(): false,
			} {
				got, err := (Netlink{}).Local(t.Context(), addr)
				kit.Check(t, got == want && err == nil, "Local(%s) = %t, %v, want %t", addr, got, err, want)
			}
		})
	}
}

func TestContextEnded(t *testing.T) {
	isolate(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := newAddresses(service.IPv4)
	inject(t, p.flows(1, to(p.vip, 53), p.a))
	err := (Netlink{}).Dump(ctx, Filter{}, func(Flow) {})
	kit.Check(t, errors.Is(err, context.Canceled), "Dump = %v, want %v", err, context.Canceled)
	_, err = (Netlink{}).Delete(ctx, p.flows(1, to(p.vip, 53), p.a))
	kit.Check(t, errors.Is(err, context.Canceled), "Delete = %v, want %v", err, context.Canceled)
}

// TestReadDump reads recorded messages. A dump that the kernel interrupted is an error, so
// that it is done again.
func TestReadDump(t *testing.T) {
	raw, err := hex.DecodeString(entryV4)
	kit.Must(t, err)
	entry := netlink.Message{Body: raw}
	done := netlink.Message{Type: unix.NLMSG_DONE, Body: make([]byte, 4)}
	marked := func(m netlink.Message) netlink.Message { m.Flags |= unix.NLM_F_DUMP_INTR; return m }
	fails := netlink.Message{Type: unix.NLMSG_ERROR, Body: binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EPERM)+1)}
	for name, tt := range map[string]struct {
		messages []netlink.Message
		entries  int
		want     error
	}{
		"whole":             {[]netlink.Message{entry, entry, done}, 2, nil},
		"interrupted":       {[]netlink.Message{entry, marked(entry), entry, done}, 3, unix.EINTR},
		"interrupted first": {[]netlink.Message{marked(entry), done}, 1, unix.EINTR},
		"interrupted last":  {[]netlink.Message{entry, marked(done)}, 1, unix.EINTR},
		"refused":           {[]netlink.Message{entry, fails, entry}, 1, unix.EPERM},
		"cut short":         {[]netlink.Message{entry, {Body: raw[:8]}, done}, 1, errShort},
	} {
		n := 0
		err := readDump(func(Flow) { n++ }, func(handle func(netlink.Message) (bool, error)) error {
			for _, m := range tt.messages {
				if more, err := handle(m); err != nil || !more {
					return err
				}
			}
			return nil
		})
		kit.Check(t, n == tt.entries && errors.Is(err, tt.want),
			"%s: %d entries, %v; want %d, %v", name, n, err, tt.entries, tt.want)
	}
}

// TestMeaningOfErrors checks what the errors of the kernel stand for.
func TestMeaningOfErrors(t *testing.T) {
	for err, want := range map[error]bool{
		unix.ENETUNREACH: true, unix.EHOSTUNREACH: true, unix.EACCES: true, unix.EINVAL: true,
		unix.EAGAIN: true, // a route of type throw
		unix.EPERM:  false, unix.ENOBUFS: false, nil: false,
	} {
		kit.Equal(t, noRoute(err), want, "%v means that there is no route", err)
	}
	for err, want := range map[error]bool{unix.EPROTONOSUPPORT: true, unix.EAFNOSUPPORT: true, unix.EPERM: false, nil: false} {
		got := missingSocket(fmt.Errorf("socket: %w", err))
		missing, is := errors.AsType[*MissingModuleError](got)
		kit.Check(t, is == want && (!is || missing.Module == "nfnetlink"), "%v: %v, want a missing module: %t", err, got, want)
	}
}

// TestShortAttributes checks that attributes with too few or too many bytes are ignored.
func TestShortAttributes(t *testing.T) {
	for _, size := range []int{0, 1, 3} {
		var e netlink.Encoder
		for _, typ := range []uint16{ctaProtoNum, ctaProtoSrcPort, ctaProtoDstPort} {
			if typ != ctaProtoNum || size != 1 {
				e.Bytes(typ, make([]byte, size))
			}
		}
		got := tuple{protocol: 17, from: 1, to: 2}
		got.decodeProto(e.Buf)
		want := (tuple{protocol: 17, from: 1, to: 2})
		kit.Check(t, got == want, "attributes of %d bytes: %+v, want %+v", size, got, want)
	}
}
