// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// Netlink implements Driver with the table of the calling thread's network namespace.
type Netlink struct{}

// Dump implements Driver.
func (Netlink) Dump(ctx context.Context, f Filter, each func(Flow)) error {
	return retryDump(f, func(f Filter) error { return dump(ctx, f, each) })
}

// attempts bounds how often a dump that the kernel could not complete is restarted.
const attempts = 5

// retryDump restarts an interrupted dump, of the whole family if the kernel rejects the filter.
func retryDump(f Filter, dump func(Filter) error) error {
	var err error
	for range attempts {
		err = dump(f)
		invalid := errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
		switch {
		case invalid && f.Protocol != 0:
			f = Filter{Family: f.Family}
		case invalid:
			return &MissingModuleError{"nf_conntrack_netlink", err}
		case !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.EINTR):
			return err
		}
	}
	return err
}

func dump(ctx context.Context, f Filter, each func(Flow)) error {
	s, err := dial(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := send(s, [][]byte{encodeFilter(f)}, msgGet, unix.NLM_F_DUMP); err != nil {
		return err
	}
	return readDump(each, func(handle func(netlink.Message) (bool, error)) error { return s.Receive(ctx, handle) })
}

// readDump calls each for the entries that receive passes on. The kernel marks a message if the
// table changed and entries may lack (kernel: include/uapi/linux/netlink.h, NLM_F_DUMP_INTR).
func readDump(each func(Flow), receive func(func(netlink.Message) (bool, error)) error) error {
	interrupted := false
	err := receive(func(m netlink.Message) (bool, error) {
		interrupted = interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
		if m.Type == unix.NLMSG_DONE || m.Type == unix.NLMSG_ERROR {
			return false, m.Err()
		}
		flow, err := decodeFlow(m.Body)
		if err == nil {
			each(flow)
		}
		return true, err
	})
	if err == nil && interrupted {
		return fmt.Errorf("table changed size: %w", unix.EINTR)
	}
	return err
}

// Find returns the entry of a connection, by its first packet.
func (Netlink) Find(ctx context.Context, p service.Protocol, from, to netip.AddrPort) (f Flow, found bool, err error) {
	e := payload(service.FamilyOf(to.Addr()))
	encodeTuple(e, ctaTupleOrig, tuple{protocol: p, src: from.Addr(), dst: to.Addr(), from: from.Port(), to: to.Port()})
	s, err := dial(ctx)
	if err != nil {
		return f, false, err
	}
	defer s.Close()
	if err := send(s, [][]byte{e.Buf}, msgGet, unix.NLM_F_ACK); err != nil {
		return f, false, err
	}
	err = s.Receive(ctx, func(m netlink.Message) (more bool, err error) {
		if m.Type == unix.NLMSG_ERROR { // a missing entry is not an error
			return false, nil
		}
		f, err = decodeFlow(m.Body)
		found = err == nil
		return true, err
	})
	return f, found, err
}

// Delete implements Driver. It reads the state of connections again, as the kernel deletes any
// (kernel: net/netfilter/nf_conntrack_netlink.c, ctnetlink_del_conntrack).
func (Netlink) Delete(ctx context.Context, flows []Flow) (int, error) {
	if !slices.ContainsFunc(flows, func(f Flow) bool { return f.Protocol != service.UDP }) {
		return deleteAll(ctx, flows)
	}
	answered, err := protectedIDs(ctx, flows)
	if err != nil {
		return 0, fmt.Errorf("look at conntrack entries again: %w", err)
	}
	flows = slices.DeleteFunc(slices.Clone(flows), func(f Flow) bool { return answered[f.ID] })
	if len(flows) == 0 {
		return 0, nil
	}
	return deleteAll(ctx, flows)
}

// protectedIDs returns the IDs of flows that by now are connections to keep.
func protectedIDs(ctx context.Context, flows []Flow) (map[uint32]bool, error) {
	var requests [][]byte
	for _, f := range flows {
		if f.Protocol == service.UDP {
			continue
		}
		requests = append(requests, encodeGet(f))
	}
	s, err := dial(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := send(s, requests, msgGet, unix.NLM_F_ACK); err != nil {
		return nil, err
	}
	found := map[uint32]bool{}
	err = s.Receive(ctx, func(m netlink.Message) (bool, error) {
		if m.Type == unix.NLMSG_ERROR {
			return int(m.Seq) < len(requests), nil // a missing entry is not an error
		}
		f, err := decodeFlow(m.Body)
		if err == nil && f.protected() {
			found[f.ID] = true
		}
		return true, err
	})
	return found, err
}

func deleteAll(ctx context.Context, flows []Flow) (int, error) {
	requests := make([][]byte, len(flows))
	for i, f := range flows {
		var err error
		if requests[i], err = encodeDelete(f); err != nil {
			return 0, fmt.Errorf("delete conntrack entry: %w", err)
		}
	}
	n, errs := remove(ctx, requests)
	for i, err := range errs {
		errs[i] = fmt.Errorf("delete conntrack entries: %w", err)
	}
	return n, errors.Join(errs...)
}

// remove sends all requests at once. The kernel answers those that fail, and the last one.
func remove(ctx context.Context, requests [][]byte) (int, []error) {
	s, err := dial(ctx)
	if err != nil {
		return 0, []error{err}
	}
	defer s.Close()
	if err := send(s, requests, msgDelete, unix.NLM_F_ACK); err != nil {
		return 0, []error{err}
	}
	n := len(requests)
	var errs []error
	err = s.Receive(ctx, func(m netlink.Message) (bool, error) {
		if m.Type != unix.NLMSG_ERROR {
			return true, nil
		}
		if err := m.Err(); err != nil {
			n--
			if !errors.Is(err, unix.ENOENT) {
				errs = append(errs, err)
			}
		}
		return int(m.Seq) < len(requests), nil
	})
	if err != nil {
		return 0, append(errs, err)
	}
	return n, errs
}

// Local implements Driver, as "fib daddr type local" in a rule of nft(8) does.
func (Netlink) Local(ctx context.Context, addr netip.Addr) (bool, error) {
	s, err := netlink.Dial(unix.NETLINK_ROUTE, netlink.Options{})
	if err != nil {
		return false, err
	}
	defer s.Close()
	typ := byte(unix.RTN_UNSPEC)
	err = s.Query(ctx, encodeRoute(addr), func(m netlink.Message) error {
		typ = routeType(m.Body)
		return nil
	})
	if noRoute(err) {
		return false, nil
	}
	return typ == unix.RTN_LOCAL, err
}

// noRoute reports whether err means that there is no route, or a route of type
// unreachable, prohibit, blackhole or throw, see ip-route(8).
func noRoute(err error) bool {
	of := []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAGAIN}
	return slices.ContainsFunc(of, func(e error) bool { return errors.Is(err, e) })
}

// socketBuffer holds the kernel's answers until they are read.
const socketBuffer = 1 << 20

func dial(ctx context.Context) (*netlink.Socket, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := netlink.Dial(unix.NETLINK_NETFILTER, netlink.Options{Buffer: socketBuffer})
	return s, missingSocket(err)
}

// missingSocket names the module that a kernel lacks which knows no such sockets.
func missingSocket(err error) error {
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("open netlink socket: %w", &MissingModuleError{"nfnetlink", err})
	}
	return err
}

// send sends payloads in one datagram, numbered from 1. The last one gets the flags last.
func send(s *netlink.Socket, payloads [][]byte, typ, last uint16) error {
	var e netlink.Encoder
	for _, p := range payloads {
		e.Message(subsystem|typ, 0)
		e.Buf = append(e.Buf, p...)
		e.EndMessage()
	}
	e.AddFlags(last)
	return s.Send(e.Buf)
}

// encodeRoute returns a request for the route to addr: rtmsg and the address (rtnetlink(7)).
func encodeRoute(addr netip.Addr) []byte {
	rtmsg := make([]byte, unix.SizeofRtMsg)
	rtmsg[0], rtmsg[1] = unix.AF_INET, byte(addr.BitLen())
	if !addr.Is4() {
		rtmsg[0] = unix.AF_INET6
	}
	var e netlink.Encoder
	e.Message(unix.RTM_GETROUTE, 0)
	e.Buf = append(e.Buf, rtmsg...)
	e.Bytes(unix.RTA_DST, addr.AsSlice())
	e.EndMessage()
	return e.Buf
}

// routeType returns the route type in a struct rtmsg, or RTN_UNSPEC if b is too short.
func routeType(b []byte) byte {
	if len(b) < unix.SizeofRtMsg {
		return unix.RTN_UNSPEC
	}
	return b[7]
}
