// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// TestKernelRefuses checks that an op that the kernel refuses is reported by its index
// and meaning, and that all other ops are done.
func TestKernelRefuses(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, alwaysResync())
			k := b.driver.(*kernel)
			at := func(n int) key {
				return key{generate.NthAddr([]string{"10.96.0.0", "fd00:10:96::"}[f], n), 80, service.TCP}
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
				14:           {op{verb: delRoute, route: localRoute{addr: at(1).addr}}, errMissing},
				15:           {op{verb: delAddr, route: localRoute{addr: at(1).addr}}, errMissing},
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

// TestIgnoresAnswersToEarlierRequests checks that the reply to an abandoned request is
// not taken for the reply to the next one.
func TestIgnoresAnswersToEarlierRequests(t *testing.T) {
	for want, code := range map[error]unix.Errno{nil: 0, unix.ESRCH: unix.ESRCH} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		kernel, r := pair[1], &genlClient{socket: pair[0], seq: 7}
		t.Cleanup(func() { _, _ = unix.Close(r.socket), unix.Close(kernel) })
		for _, m := range [][]byte{
			answer(unix.NLMSG_ERROR, 6, unix.EBUSY), answer(unix.NLMSG_NOOP, 7, unix.EBUSY),
			answer(unix.NLMSG_ERROR, 7, unix.EBUSY)[:unix.NLMSG_HDRLEN], answer(unix.NLMSG_ERROR, 7, code), answer(unix.NLMSG_ERROR, 8, unix.EBUSY),
		} {
			if _, err := unix.Write(kernel, m); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.receiveAck(); err != want {
			t.Errorf("hear = %v, want %v", err, want)
		}
	}
}

// answer returns a kernel message about the request with number seq.
func answer(kind uint16, seq uint32, code unix.Errno) []byte {
	m := binary.NativeEndian.AppendUint32(nil, unix.NLMSG_HDRLEN+4)
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, 0)
	m = binary.NativeEndian.AppendUint32(m, seq)
	m = binary.NativeEndian.AppendUint32(m, 0)
	return binary.NativeEndian.AppendUint32(m, uint32(-int32(code)))
}
