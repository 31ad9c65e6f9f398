// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// AtOnce is how many requests go to the kernel at once. Their answers have
// to fit into the socket's buffer.
const AtOnce = 64

// batcher changes virtual servers and destinations, many with one call of the
// kernel, where the library has a call, and waits, for each.
type batcher struct {
	sock   *nl.NetlinkSocket
	family uint16 // of IPVS in generic netlink
	af     uint16
	seq    uint32
	buf    []byte
}

func newBatcher(f service.Family) (*batcher, error) {
	id, err := family()
	if err != nil {
		return nil, err
	}
	sock, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_GENERIC)
	if err != nil {
		return nil, err
	}
	b := &batcher{sock: sock, family: id, af: unix.AF_INET}
	if f == service.IPv6 {
		b.af = unix.AF_INET6
	}
	// An answer need not repeat what was asked.
	if err := unix.SetsockoptInt(sock.GetFd(), unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		sock.Close()
		return nil, err
	}
	tv := unix.NsecToTimeval(int64(answerTime))
	if err := sock.SetReceiveTimeout(&tv); err != nil {
		sock.Close()
		return nil, err
	}
	return b, nil
}

// answerTime is how long the kernel may take to answer a batch: it may have to
// load a scheduler.
const answerTime = 30 * time.Second

// Commands and attributes of IPVS in generic netlink.
const (
	cmdNewService = 1
	cmdSetService = 2
	cmdDelService = 3
	cmdNewDest    = 5
	cmdSetDest    = 6
	cmdDelDest    = 7

	attrService = 1
	attrDest    = 2

	serviceFamily, serviceProtocol, serviceAddr, servicePort       = 1, 2, 3, 4
	serviceScheduler, serviceFlags, serviceTimeout, serviceNetmask = 6, 7, 8, 9

	destAddr, destPort, destForward, destWeight, destUpper, destLower, destFamily = 1, 2, 3, 4, 5, 6, 11
)

var commands = map[verb]uint8{
	addServer: cmdNewService, setServer: cmdSetService, delServer: cmdDelService,
	addDest: cmdNewDest, setDest: cmdSetDest, delDest: cmdDelDest,
}

// do does ops, which are all about virtual servers and destinations, and calls
// failed for each that the kernel refuses.
func (b *batcher) do(ops []op, failed func(i int, err error)) {
	b.buf = b.buf[:0]
	first := b.seq + 1
	for i := range ops {
		b.message(&ops[i])
	}
	err := unix.Sendto(b.sock.GetFd(), b.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	answered := make([]bool, len(ops))
	for left := len(ops); err == nil && left > 0; {
		var all []syscall.NetlinkMessage
		if all, _, err = b.sock.Receive(); err != nil {
			break
		}
		for _, m := range all {
			i := int(m.Header.Seq - first)
			if i < 0 || i >= len(ops) || answered[i] || m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue // an answer to what was given up
			}
			answered[i] = true
			left--
			if n := int32(binary.NativeEndian.Uint32(m.Data)); n != 0 {
				failed(i, unix.Errno(-n))
			}
		}
	}
	for i := range ops {
		if err != nil && !answered[i] {
			failed(i, fmt.Errorf("hear from the kernel: %w", err))
		}
	}
}

// message appends the request for o.
func (b *batcher) message(o *op) {
	start := len(b.buf)
	b.seq++
	b.u32(0)
	b.u16(b.family)
	b.u16(unix.NLM_F_REQUEST | unix.NLM_F_ACK)
	b.u32(b.seq)
	b.u32(0)
	b.buf = append(b.buf, commands[o.verb], 1, 0, 0)
	at := b.open(attrService)
	b.attr16(serviceFamily, b.af)
	b.attr16(serviceProtocol, uint16(o.key.proto))
	b.attr(serviceAddr, o.key.addr.AsSlice())
	b.attr(servicePort, binary.BigEndian.AppendUint16(nil, o.key.port))
	if o.verb == addServer || o.verb == setServer {
		b.attr(serviceScheduler, append([]byte(o.server.scheduler), 0))
		flags := binary.NativeEndian.AppendUint32(nil, o.server.flags)
		b.attr(serviceFlags, binary.NativeEndian.AppendUint32(flags, 0xffffffff))
		b.attr32(serviceTimeout, o.server.timeout)
		b.attr32(serviceNetmask, netmask(b.af))
	}
	b.end(at)
	if o.verb == addDest || o.verb == setDest || o.verb == delDest {
		at := b.open(attrDest)
		b.attr(destAddr, o.dest.addr.Addr().AsSlice())
		b.attr(destPort, binary.BigEndian.AppendUint16(nil, o.dest.addr.Port()))
		b.attr32(destForward, 0) // masquerading
		b.attr32(destWeight, uint32(o.dest.weight))
		b.attr32(destUpper, 0)
		b.attr32(destLower, 0)
		b.attr16(destFamily, b.af)
		b.end(at)
	}
	binary.NativeEndian.PutUint32(b.buf[start:], uint32(len(b.buf)-start))
}

// netmask makes persistence tell all clients apart.
func netmask(af uint16) uint32 {
	if af == unix.AF_INET6 {
		return 128
	}
	return 0xffffffff
}

func (b *batcher) u16(n uint16) { b.buf = binary.NativeEndian.AppendUint16(b.buf, n) }
func (b *batcher) u32(n uint32) { b.buf = binary.NativeEndian.AppendUint32(b.buf, n) }

// open begins an attribute that holds others; end ends it.
func (b *batcher) open(typ uint16) int {
	at := len(b.buf)
	b.u16(0)
	b.u16(typ | unix.NLA_F_NESTED)
	return at
}

func (b *batcher) end(at int) {
	binary.NativeEndian.PutUint16(b.buf[at:], uint16(len(b.buf)-at))
}

func (b *batcher) attr(typ uint16, value []byte) {
	b.u16(uint16(4 + len(value)))
	b.u16(typ)
	b.buf = append(b.buf, value...)
	for len(b.buf)%4 != 0 {
		b.buf = append(b.buf, 0)
	}
}

func (b *batcher) attr16(typ, n uint16) {
	b.attr(typ, binary.NativeEndian.AppendUint16(nil, n))
}

func (b *batcher) attr32(typ uint16, n uint32) {
	b.attr(typ, binary.NativeEndian.AppendUint32(nil, n))
}

// commitServers does ops that are all about virtual servers and destinations.
func (k *kernel) commitServers(ops []op, failed func(i int, err error)) {
	for from := 0; from < len(ops); from += AtOnce {
		part := ops[from:min(from+AtOnce, len(ops))]
		k.batch.do(part, func(i int, err error) { failed(from+i, k.explain(&part[i], err)) })
	}
}

// explain tells apart what the kernel has one number for.
func (k *kernel) explain(o *op, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT) && o.verb == addServer:
		return fmt.Errorf("%w: the kernel has no scheduler %s", err, o.server.scheduler)
	case errors.Is(err, unix.ENOENT) && o.verb == delDest:
		return fmt.Errorf("%w: %w", errMissing, err)
	}
	return err
}
