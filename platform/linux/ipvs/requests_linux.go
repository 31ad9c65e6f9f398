// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// requester makes our own requests to IPVS. The library moby/ipvs makes all others, see
// callClient. Our own are:
//   - Changes. With all of them through the library, a first program took 1.31 times what
//     a bare loop over the library takes; the aim in docs/benchmarks.md is 1.3. The
//     library builds a request of many small objects: in BenchmarkChange, three changes
//     cost 152 allocations and 493 µs through it, and 15 and 298 µs here.
//   - Statistics. The library counts connections and packets in 32 bits, see
//     assembleStats in its netlink_linux.go.
//   - Queries after the module was reloaded. The library looks up the number of IPVS once
//     in a process (setup in its netlink_linux.go) and only logs a failure of that, see
//     moby/ipvs#27. The kernel may give IPVS another number when it loads the module.
type requester struct {
	socket     *netlink.Socket
	message    netlink.Encoder
	familyID   uint16 // number of IPVS in generic netlink, until the module is reloaded
	family     service.Family
	lookupTime time.Duration // time spent on finding IPVS again
}

// receiveTimeout limits the wait for the next part of a list.
const receiveTimeout = 30 * time.Second

// openRequester returns a requester for IPVS, whose number is id.
func openRequester(f service.Family, id uint16) (*requester, error) {
	s, err := netlink.Dial(unix.NETLINK_GENERIC, netlink.Options{Timeout: receiveTimeout})
	return &requester{socket: s, familyID: id, family: f}, err
}

// retryOnReload calls request, and calls it again if IPVS has another number now.
func (r *requester) retryOnReload(request func() error) error {
	err := request()
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	start := time.Now()
	id, lack := ensureLoaded()
	r.lookupTime += time.Since(start)
	if lack != nil {
		return lack
	}
	if id == r.familyID {
		return err // ENOENT has another cause
	}
	r.familyID = id
	return request()
}

// Commands and attributes of IPVS (kernel: include/uapi/linux/ip_vs.h).
const (
	cmdGetService, cmdGetDest, cmdSetConfig, cmdGetConfig = 4, 8, 12, 13

	attrService = 1
	attrDest    = 2

	serviceFamily, serviceProtocol, serviceAddr, servicePort    = 1, 2, 3, 4
	serviceMark, serviceScheduler, serviceFlags, serviceTimeout = 5, 6, 7, 8
	serviceNetmask                                              = 9

	destAddr, destPort, destForward, destWeight, destUpper, destLower = 1, 2, 3, 4, 5, 6
	destActive, destInactive, destFamily                              = 7, 8, 11

	attrTCP, attrTCPFin, attrUDP = 4, 5, 6

	fwdMethodMask = 7 // IP_VS_CONN_F_FWD_MASK. Method 0 is masquerading
)

var commands = map[verb]uint8{addServer: 1, setServer: 2, delServer: 3, addDest: 5, setDest: 6, delDest: 7}

// change sends a command with the attributes that encode appends, and waits for the
// acknowledgement.
func (r *requester) change(command uint8, encode func()) error {
	return r.retryOnReload(func() error { return r.socket.Transact(r.encode(command, unix.NLM_F_ACK, encode)) })
}

// query sends a command and calls each with the attributes of every reply.
func (r *requester) query(command uint8, flags uint16, encode func(), each func(attrs []byte) error) error {
	return r.retryOnReload(func() error {
		return r.socket.Query(context.Background(), r.encode(command, flags, encode), func(m netlink.Message) error { return each(m.Generic()) })
	})
}

// encode returns a request. It is valid until the next one.
func (r *requester) encode(command uint8, flags uint16, encode func()) []byte {
	r.message.Buf = r.message.Buf[:0]
	r.message.GenericMessage(r.familyID, flags, command)
	encode()
	r.message.EndMessage()
	return r.message.Buf
}

func encodeNothing() {}

// do executes o, which concerns a virtual server or a destination.
func (r *requester) do(o *op) error {
	return r.change(commands[o.verb], func() {
		switch o.verb {
		case addServer, setServer:
			r.encodeServer(o.key, &o.server)
		case delServer:
			r.encodeServer(o.key, nil)
		default:
			r.encodeServer(o.key, nil)
			r.encodeDest(o.dest)
		}
	})
}

// encodeServer appends the key of a virtual server, and the properties in s unless s is
// nil.
func (r *requester) encodeServer(at key, s *server) {
	e := &r.message
	begin := e.Nest(attrService)
	e.Native16(serviceFamily, af(r.family))
	e.Native16(serviceProtocol, uint16(at.proto))
	e.Bytes(serviceAddr, at.addr.AsSlice())
	e.Uint16(servicePort, at.port)
	if s != nil {
		e.Text(serviceScheduler, s.scheduler)
		var flags [8]byte // and the mask of those that count
		binary.NativeEndian.PutUint32(flags[:], s.flags)
		binary.NativeEndian.PutUint32(flags[4:], 0xffffffff)
		e.Bytes(serviceFlags, flags[:])
		e.Native32(serviceTimeout, s.timeout)
		e.Native32(serviceNetmask, netmask(r.family))
	}
	e.EndNest(begin)
}

func (r *requester) encodeDest(d dest) {
	e := &r.message
	begin := e.Nest(attrDest)
	e.Bytes(destAddr, d.addr.Addr().AsSlice())
	e.Uint16(destPort, d.addr.Port())
	e.Native32(destForward, 0) // masquerading
	e.Native32(destWeight, uint32(d.weight))
	e.Native32(destUpper, 0)
	e.Native32(destLower, 0)
	e.Native16(destFamily, af(r.family))
	e.EndNest(begin)
}

// listServers implements client.
func (r *requester) listServers() (map[key]*observedServer, error) {
	servers := map[key]*observedServer{}
	err := r.query(cmdGetService, unix.NLM_F_DUMP, encodeNothing, func(attrs []byte) error {
		x, err := parseServer(attrs)
		if err == nil && x.family == af(r.family) && x.mark == 0 {
			servers[x.key] = &observedServer{server: x.server}
		}
		return err
	})
	return servers, err
}

// getServer implements client.
func (r *requester) getServer(at key) (server, error) {
	var x parsedServer
	err := r.query(cmdGetService, 0, func() { r.encodeServer(at, nil) }, func(attrs []byte) (err error) {
		x, err = parseServer(attrs)
		return err
	})
	return x.server, err
}

// listDests implements client.
func (r *requester) listDests(at key) ([]dest, error) {
	var dests []dest
	err := r.query(cmdGetDest, unix.NLM_F_DUMP, func() { r.encodeServer(at, nil) }, func(attrs []byte) error {
		x, err := parseDestination(attrs, r.family)
		dests = append(dests, x)
		return err
	})
	slices.SortFunc(dests, func(a, b dest) int { return a.addr.Compare(b.addr) })
	return dests, err
}

// getTimeouts implements client.
func (r *requester) getTimeouts() (timeouts, error) {
	var t timeouts
	err := r.query(cmdGetConfig, 0, encodeNothing, func(attrs []byte) error {
		for attr, to := range map[uint16]*time.Duration{attrTCP: &t.tcp, attrTCPFin: &t.tcpFin, attrUDP: &t.udp} {
			*to = time.Duration(netlink.Native32(netlink.Attribute(attrs, attr))) * time.Second
		}
		return nil
	})
	return t, err
}

// setTimeouts implements client.
func (r *requester) setTimeouts(t timeouts) error {
	return r.change(cmdSetConfig, func() {
		r.message.Native32(attrTCP, uint32(t.tcp/time.Second))
		r.message.Native32(attrTCPFin, uint32(t.tcpFin/time.Second))
		r.message.Native32(attrUDP, uint32(t.udp/time.Second))
	})
}

// parsedServer is a virtual server as the kernel returns it.
type parsedServer struct {
	key
	server
	family uint16
	mark   uint32 // the packet mark that selects its packets, if no address does
}

func parseServer(attrs []byte) (parsedServer, error) {
	var x parsedServer
	var addr []byte
	for kind, v := range netlink.Attributes(netlink.Attribute(attrs, attrService)) {
		switch kind {
		case serviceFamily:
			x.family = netlink.Native16(v)
		case serviceProtocol:
			x.proto = service.Protocol(netlink.Native16(v))
		case serviceAddr:
			addr = v
		case servicePort:
			x.port = netlink.Uint16(v)
		case serviceMark:
			x.mark = netlink.Native32(v)
		case serviceScheduler:
			x.scheduler = netlink.Text(v)
		case serviceFlags:
			x.flags = netlink.Native32(v)
		case serviceTimeout:
			x.timeout = netlink.Native32(v)
		}
	}
	if x.mark != 0 {
		return x, nil
	}
	var err error
	x.addr, err = parseAddr(addr, x.family)
	return x, err
}

func parseDestination(attrs []byte, f service.Family) (dest, error) {
	var x dest
	var addr []byte
	port, family := uint16(0), af(f)
	for kind, v := range netlink.Attributes(netlink.Attribute(attrs, attrDest)) {
		switch kind {
		case destAddr:
			addr = v
		case destPort:
			port = netlink.Uint16(v)
		case destForward:
			x.wrongMode = netlink.Native32(v)&fwdMethodMask != 0
		case destWeight:
			x.weight = uint16(netlink.Native32(v))
		case destActive, destInactive:
			x.conns += netlink.Native32(v)
		case destFamily:
			family = netlink.Native16(v)
		}
	}
	a, err := parseAddr(addr, family)
	x.addr = netip.AddrPortFrom(a, port)
	return x, err
}

// parseAddr returns the address in an attribute, which always has room for an IPv6
// address.
func parseAddr(v []byte, family uint16) (netip.Addr, error) {
	n := 4
	if family == unix.AF_INET6 {
		n = 16
	}
	if len(v) < n {
		return netip.Addr{}, fmt.Errorf("IPVS returned an address of %d bytes, want %d", len(v), n)
	}
	a, _ := netip.AddrFromSlice(v[:n])
	return a, nil
}

func af(f service.Family) uint16 {
	if f == service.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// netmask makes persistence distinguish all clients.
func netmask(f service.Family) uint32 {
	if f == service.IPv6 {
		return 128
	}
	return 0xffffffff
}
