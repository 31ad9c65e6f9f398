// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bytes"
	"context"
	_ "embed" // the program
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// watchObject is bpf/watch.c, compiled by make bpf.
//
//go:embed bpf/watch.o
var watchObject []byte

// repeated equals struct repeat of the program.
type repeated struct {
	At, Cookie       uint64
	From4, To4       [4]byte
	From6, To6       [16]byte
	FromPort, ToPort uint16
	_                uint32
}

// between returns the connection's ends in a family, of another one if it has none there.
func (r *repeated) between(f service.Family) (from, to netip.AddrPort) {
	src, dst := netip.AddrFrom4(r.From4), netip.AddrFrom4(r.To4)
	if f == service.IPv6 {
		src, dst = netip.AddrFrom16(r.From6), netip.AddrFrom16(r.To6)
	}
	return netip.AddrPortFrom(src, r.FromPort), netip.AddrPortFrom(dst, bits.ReverseBytes16(r.ToPort))
}

func (k *kernel) Repeats(ctx context.Context, each func(repeat), idle func()) error {
	reader, detach, err := watchRepeats()
	if err != nil {
		return err
	}
	defer detach()
	stop := context.AfterFunc(ctx, func() { reader.Close() })
	defer stop()
	var rec ringbuf.Record
	var second time.Time
	for n := 0; ; {
		reader.SetDeadline(time.Now().Add(idleTime))
		err := reader.ReadInto(&rec)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			idle()
			continue
		case err != nil:
			return fmt.Errorf("read what the program saw: %w", err)
		}
		var r repeated
		if err := binary.Read(bytes.NewReader(rec.RawSample), binary.NativeEndian, &r); err != nil {
			return err
		}
		age := monotonic() - time.Duration(r.At)
		if age > stale {
			continue // TCP has repeated the packet again
		}
		if n++; n > perSecond {
			reconcile.Pause(ctx, time.Second-time.Since(second))
		}
		if time.Since(second) >= time.Second {
			n, second = 1, time.Now()
		}
		from, to := r.between(k.family)
		if frontend, taken := k.frontendOf(r.Cookie, to); taken {
			reconcile.Pause(ctx, settle-age)
			each(repeat{from, to, frontend})
		}
	}
}

// monotonic returns the time of bpf_ktime_get_ns.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // no kernel lacks it
	return time.Duration(t.Nano())
}

// watchRepeats attaches the program of bpf/watch.c.
func watchRepeats() (*ringbuf.Reader, func(), error) {
	c, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(watchObject))
	if err != nil {
		return nil, nil, err
	}
	if err := allowMaps(); err != nil {
		return nil, nil, err
	}
	all, err := ebpf.NewCollection(c)
	if err != nil {
		return nil, nil, fmt.Errorf("load the program that sees repeated packets: %w", err)
	}
	defer all.Close() // what is attached stays
	reader, err := ringbuf.NewReader(all.Maps["repeats"])
	if err != nil {
		return nil, nil, err
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: all.Programs["repeated"]})
	if err != nil {
		reader.Close()
		return nil, nil, fmt.Errorf("attach the program that sees repeated packets: %w", err)
	}
	return reader, func() { l.Close(); reader.Close() }, nil
}

// places is how many are in a set of the table recent, RECENT_PLACES of the programs.
const places = 8

// frontendOf returns the frontend of a taken socket from the table recent, see bpf/socketlb.c.
func (k *kernel) frontendOf(cookie uint64, to netip.AddrPort) (netip.AddrPort, bool) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(k.dir, "recent"), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return netip.AddrPort{}, false
	}
	defer m.Close()
	w := words[k.family]
	set := make([]uint64, 2*places+1+2*w*places)
	if err := m.Lookup(uint32(cookie%uint64(m.MaxEntries())), set); err != nil {
		return netip.AddrPort{}, false
	}
	i := slices.Index(set[:places], cookie)
	if i < 0 {
		return netip.AddrPort{}, false
	}
	names := set[2*places+1+2*w*i:][:2*w]
	sum := cookie
	for j := range w {
		sum ^= names[j] ^ names[w+j]<<1
	}
	return load(names[:w]).addrPort(k.family), set[places+i] == sum && load(names[w:]) == nameOf(to)
}
