// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"kubeproxy/common/explain"
)

const (
	// dialTimeout is below the time after which a system repeats the first packet, one second
	// (RFC 6298, section 2), so that there is one packet for each dial.
	dialTimeout = 800 * time.Millisecond
	// MostDials is how many endpoints are dialed.
	MostDials = 16
)

// Prober says who asks for a probe, for the log of the proxy.
func Prober() string {
	name := fmt.Sprintf("user %d", os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return fmt.Sprintf("%s, process %d", name, os.Getpid())
}

// place is from where to dial.
type place struct {
	name   string
	within func(func()) error // runs a function there, nil for here
}

func (p place) run(fn func()) error {
	if p.within == nil {
		fn()
		return nil
	}
	return p.within(fn)
}

// Probe dials the endpoints of x that get connections, from here and from a client that is a pod of
// this node, unless they get them from the node, then the destination, and adds to x what it finds.
func Probe(ctx context.Context, x *explain.Explanation) error {
	client, err := netip.ParseAddr(x.Source)
	if err != nil { // the Service is not served at all
		return nil
	}
	p, places := &explain.Probe{}, []place{{name: explain.Here}}
	within, enter, closePlace, err := namespaceOf(client)
	defer closePlace()
	p.Enter = enter
	switch {
	case err != nil:
		p.Untold = append(p.Untold, fmt.Sprintf("not dialed from the client %s: %v", client, err))
	case within != nil:
		places = append(places, place{explain.FromClient, within})
	}
	last := places[len(places)-1]
	endpoints, more := x.Dialed(MostDials)
	if n := len(more); n > 0 {
		named := strings.Join(more[:min(n, MostDials)], ", ")
		p.Untold = append(p.Untold, fmt.Sprintf("%d more endpoints were not dialed, such as %s", n, named))
	}
	dials := make([]dial, 0, len(places)*len(endpoints)+1)
	for _, at := range places {
		for i := range endpoints {
			e, alone := &endpoints[i], len(places) == 1 || endpoints[i].Masqueraded()
			if alone && at.name != explain.Here {
				continue
			}
			dials = append(dials, dial{at, e.Address, x.Protocol, true, !e.Local && (alone || at.name != explain.Here)})
		}
	}
	p.Dials = dialAll(ctx, dials)
	if err != nil && x.Judges() {
		p.Untold = append(p.Untold, x.Destination+" was not dialed: its source ranges decide by the address of the client")
	} else {
		p.Dials = append(p.Dials, dialAll(ctx, []dial{{last, x.Destination, x.Protocol, false, false}})...)
	}
	p.Untold = append(p.Untold, untold(p.Dials)...)
	x.SetProbe(p)
	return ctx.Err()
}

// untold says what the results do not tell.
func untold(all []explain.Dial) []string {
	var texts []string
	silent, packets := false, false
	for _, d := range all {
		silent = silent || d.Result == explain.Silent
		packets = packets || d.Packets != nil && d.Packets.State == explain.PacketsUnknown
	}
	if silent {
		texts = append(texts, "no answer over UDP may also come from a program that works: not every one answers an empty datagram")
	}
	if packets {
		texts = append(texts, "whether large packets arrive was not told, where PACKETS is empty: closed ports of the endpoint do not answer, or this system cannot ask")
	}
	return texts
}

// dial is one connection to attempt.
type dial struct {
	from     place
	to       string
	protocol string
	endpoint bool
	sized    bool // also look which packets arrive
}

// dialAll dials at the same time.
func dialAll(ctx context.Context, all []dial) []explain.Dial {
	results := make([]explain.Dial, len(all))
	var group sync.WaitGroup
	for i, d := range all {
		group.Go(func() {
			r := &results[i]
			r.From, r.To, r.Endpoint = d.from.name, d.to, d.endpoint
			if err := d.from.run(func() { d.connect(ctx, r) }); err != nil {
				r.Result, r.Reason = explain.Failed, err.Error()
			}
		})
	}
	group.Wait()
	return results
}

// connect dials in the namespace of the calling thread.
func (d dial) connect(whole context.Context, r *explain.Dial) {
	ctx, cancel := context.WithTimeout(whole, dialTimeout)
	defer cancel()
	start := time.Now()
	took := func() { r.Milliseconds = float64(time.Since(start).Microseconds()) / 1000 }
	if d.protocol == "sctp" {
		d.classify(r, dialSCTP(ctx, d.to))
		took()
		return
	}
	conn, err := (&net.Dialer{Control: oneSYN}).DialContext(ctx, d.protocol, d.to)
	if err == nil {
		defer conn.Close()
	}
	if err == nil && d.protocol == "udp" {
		err = exchange(ctx, conn, nil)
	}
	d.classify(r, err)
	took()
	if err == nil && d.sized && d.protocol == "tcp" {
		r.Packets = probePackets(whole, conn)
	}
}

// hasAddr reports whether an interface here has the address a.
func hasAddr(a netip.Addr) (bool, error) {
	all, err := net.InterfaceAddrs()
	return slices.ContainsFunc(all, func(x net.Addr) bool {
		p, err := netip.ParsePrefix(x.String())
		return err == nil && p.Addr().Unmap() == a
	}), err
}

// exchange sends a datagram, and waits for one or for an ICMP message.
func exchange(ctx context.Context, conn net.Conn, datagram []byte) error {
	end, _ := ctx.Deadline()
	if err := conn.SetDeadline(end); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := conn.Write(datagram); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	return err
}

// What Windows calls errors, beside the names of other systems:
// https://learn.microsoft.com/en-us/windows/win32/winsock/windows-sockets-error-codes-2
const (
	wsaRefused        = syscall.Errno(10061)
	wsaNetUnreachable = syscall.Errno(10051)
	wsaUnreachable    = syscall.Errno(10065)
	wsaReset          = syscall.Errno(10054) // of UDP, which stands for an ICMP message
	wsaMessageSize    = syscall.Errno(10040) // a longer answer than the buffer
)

func (d dial) classify(r *explain.Dial, err error) {
	is := func(all ...error) bool {
		for _, x := range all {
			if errors.Is(err, x) {
				return true
			}
		}
		return false
	}
	timeout, _ := errors.AsType[net.Error](err)
	switch {
	case is(wsaMessageSize) || err == nil && d.protocol == "udp":
		r.Result = explain.Answered
	case err == nil:
		r.Result = explain.Connected
	case is(syscall.ECONNREFUSED, wsaRefused) || is(wsaReset) && d.protocol == "udp":
		r.Result = explain.Refused
	case is(syscall.EHOSTUNREACH, syscall.ENETUNREACH, wsaUnreachable, wsaNetUnreachable):
		r.Result, r.Reason = explain.Unreachable, reason(err)
	case is(errors.ErrUnsupported):
		r.Result, r.Reason = explain.NotDialed, err.Error()
	case is(context.DeadlineExceeded, os.ErrDeadlineExceeded) || timeout != nil && timeout.Timeout():
		if r.Result = explain.TimedOut; d.protocol == "udp" {
			r.Result = explain.Silent
		}
	default:
		r.Result, r.Reason = explain.Failed, reason(err)
	}
}

// reason is the error of the system, without the addresses around it.
func reason(err error) string {
	if no, is := errors.AsType[syscall.Errno](err); is {
		return no.Error()
	}
	return err.Error()
}
