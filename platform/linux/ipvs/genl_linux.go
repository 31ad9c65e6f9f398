// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// genlClient is a generic netlink client of IPVS. Changes use a socket of their own,
// with one request and one reply each: the library needs more time per change.
type genlClient struct {
	socket     int
	conn       *genetlink.Conn // for queries
	familyID   uint16          // of IPVS in generic netlink, until the module is reloaded
	family     service.Family
	seq        uint32
	lookupTime time.Duration // time spent on finding IPVS again
	buf        [256]byte
}

// receiveTimeout limits the wait for a reply. The kernel may have to load a scheduler.
const receiveTimeout = 30 * time.Second

// openGenlClient returns a client for IPVS, whose family ID is id.
func openGenlClient(f service.Family, id uint16) (*genlClient, error) {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	tv := unix.NsecToTimeval(int64(receiveTimeout))
	err = errors.Join(
		unix.Bind(s, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		// A reply does not have to repeat the request (netlink(7)).
		unix.SetsockoptInt(s, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1),
	)
	var conn *genetlink.Conn
	if err == nil {
		conn, err = genetlink.Dial(nil)
	}
	if err != nil {
		_ = unix.Close(s)
		return nil, err
	}
	return &genlClient{socket: s, conn: conn, familyID: id, family: f}, nil
}

func (r *genlClient) close() {
	_ = unix.Close(r.socket)
	_ = r.conn.Close()
}

// retryOnReload calls request, and calls it again if the kernel has assigned another
// family ID to IPVS, as it does when the module is reloaded.
func (r *genlClient) retryOnReload(request func() error) error {
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

// Commands and attributes of IPVS in generic netlink (kernel:
// include/uapi/linux/ip_vs.h).
const (
	attrService = 1
	attrDest    = 2

	serviceFamily, serviceProtocol, serviceAddr, servicePort    = 1, 2, 3, 4
	serviceMark, serviceScheduler, serviceFlags, serviceTimeout = 5, 6, 7, 8
	serviceNetmask                                              = 9

	destAddr, destPort, destForward, destWeight, destUpper, destLower = 1, 2, 3, 4, 5, 6
	destActive, destInactive, destFamily                              = 7, 8, 11
)

var commands = map[verb]uint8{addServer: 1, setServer: 2, delServer: 3, addDest: 5, setDest: 6, delDest: 7}

// do executes o, which concerns a virtual server or a destination.
func (r *genlClient) do(o *op) error {
	e := netlink.NewAttributeEncoder()
	e.Nested(attrService, func(e *netlink.AttributeEncoder) error { return r.encodeServer(e, o) })
	if o.verb == addDest || o.verb == setDest || o.verb == delDest {
		e.Nested(attrDest, func(e *netlink.AttributeEncoder) error { return r.encodeDest(e, o.dest) })
	}
	attrs, err := e.Encode()
	if err != nil {
		return err
	}
	return r.retryOnReload(func() error { return r.send(commands[o.verb], attrs) })
}

// send sends one command and waits for the reply.
func (r *genlClient) send(command uint8, attrs []byte) error {
	const headers = unix.NLMSG_HDRLEN + unix.GENL_HDRLEN
	r.seq++
	m := netlink.Message{
		Header: netlink.Header{
			Length: uint32(headers + len(attrs)), Type: netlink.HeaderType(r.familyID),
			Flags: netlink.Request | netlink.Acknowledge, Sequence: r.seq,
		},
		Data: append([]byte{command, 1, 0, 0}, attrs...),
	}
	request, err := m.MarshalBinary()
	if err != nil {
		return err
	}
	if err := unix.Sendto(r.socket, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	return r.receiveAck()
}

// receiveAck waits for the reply to the last request.
func (r *genlClient) receiveAck() error {
	for {
		n, _, err := unix.Recvfrom(r.socket, r.buf[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("hear from the kernel: %w", err)
		}
		a := r.buf[:n]
		if n < unix.NLMSG_HDRLEN+4 || binary.NativeEndian.Uint16(a[4:]) != unix.NLMSG_ERROR || binary.NativeEndian.Uint32(a[8:]) != r.seq {
			continue // reply to an abandoned request
		}
		if code := int32(binary.NativeEndian.Uint32(a[unix.NLMSG_HDRLEN:])); code != 0 {
			return unix.Errno(-code)
		}
		return nil
	}
}

func (r *genlClient) encodeServer(e *netlink.AttributeEncoder, o *op) error {
	e.Uint16(serviceFamily, af(r.family))
	e.Uint16(serviceProtocol, uint16(o.key.proto))
	e.Bytes(serviceAddr, o.key.addr.AsSlice())
	e.Bytes(servicePort, binary.BigEndian.AppendUint16(nil, o.key.port))
	if o.verb == addServer || o.verb == setServer {
		e.String(serviceScheduler, o.server.scheduler)
		flags := binary.NativeEndian.AppendUint32(nil, o.server.flags)
		e.Bytes(serviceFlags, binary.NativeEndian.AppendUint32(flags, 0xffffffff)) // mask
		e.Uint32(serviceTimeout, o.server.timeout)
		e.Uint32(serviceNetmask, netmask(r.family))
	}
	return nil
}

func (r *genlClient) encodeDest(e *netlink.AttributeEncoder, d dest) error {
	e.Bytes(destAddr, d.addr.Addr().AsSlice())
	e.Bytes(destPort, binary.BigEndian.AppendUint16(nil, d.addr.Port()))
	e.Uint32(destForward, 0) // masquerading
	e.Uint32(destWeight, uint32(d.weight))
	e.Uint32(destUpper, 0)
	e.Uint32(destLower, 0)
	e.Uint16(destFamily, af(r.family))
	return nil
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
