// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// probe is the first packet of a connection. Its number shows where it arrives.
type probe struct {
	number   uint32
	proto    service.Protocol
	from, to netip.AddrPort
}

// packet returns p with its IP header.
func (p probe) packet() []byte {
	const syn, udpAt, tcpAt = 2, 6, 16
	b, at, proto := make([]byte, 12), udpAt, byte(unix.IPPROTO_UDP)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	binary.BigEndian.PutUint32(b[8:], p.number)
	if p.proto == service.TCP {
		b, at, proto = make([]byte, 20), tcpAt, unix.IPPROTO_TCP
		binary.BigEndian.PutUint32(b[4:], p.number)
		b[12], b[13], b[14] = 5<<4, syn, 0xff
	}
	binary.BigEndian.PutUint16(b, p.from.Port())
	binary.BigEndian.PutUint16(b[2:], p.to.Port())
	from, to := p.from.Addr().AsSlice(), p.to.Addr().AsSlice()
	pseudo := append(append(append([]byte{}, from...), to...), 0, proto, 0, byte(len(b)))
	binary.BigEndian.PutUint16(b[at:], checksum(append(pseudo, b...)))
	h := make([]byte, 8, 60)
	if p.to.Addr().Is4() { // the kernel completes length and checksum, see raw(7)
		h = append(h, 64, proto, 0, 0)
		h[0], h[6] = 0x45, 0x40
	} else {
		h[0], h[5], h[6], h[7] = 0x60, byte(len(b)), proto, 64
	}
	return append(append(append(h, from...), to...), b...)
}

// checksum is that of RFC 1071.
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// arrival is where a probe came to, with what source.
type arrival struct {
	host *netlab.Host
	from netip.Addr
}

// wire sends probes from hosts, and sees which ones come to a host, past all of its rules.
type wire struct {
	hosts   []*netlab.Host
	senders map[*netlab.Host][2]int
	// receivers are sockets by host, two for each family: for TCP and UDP.
	receivers map[*netlab.Host][4]int
	arrived   map[uint32]arrival
	numbers   uint32
	ports     uint16
}

func newWire(t *testing.T, hosts ...*netlab.Host) *wire {
	t.Helper()
	w := &wire{hosts: hosts, senders: map[*netlab.Host][2]int{}, receivers: map[*netlab.Host][4]int{}, arrived: map[uint32]arrival{}}
	for _, h := range hosts {
		var s [2]int
		var r [4]int
		kit.Must(t, h.Do(func() (err error) {
			s, r, err = rawSockets()
			return err
		}))
		w.senders[h], w.receivers[h] = s, r
		t.Cleanup(func() {
			for _, fd := range append(s[:], r[:]...) {
				_ = unix.Close(fd)
			}
		})
	}
	return w
}

// rawSockets opens the sockets of a host.
func rawSockets() (senders [2]int, receivers [4]int, err error) {
	var errs []error
	open := func(family, proto int) int {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, proto)
		errs = append(errs, err)
		return fd
	}
	for i, family := range []int{unix.AF_INET, unix.AF_INET6} {
		senders[i] = open(family, unix.IPPROTO_RAW)
		for j, proto := range []int{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			receivers[2*i+j] = open(family, proto)
			errs = append(errs, unix.SetsockoptInt(receivers[2*i+j], unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20))
		}
	}
	return senders, receivers, errors.Join(errs...)
}

// send sends p from h. The kernel tells that a rule of the host itself stopped it.
func (w *wire) send(t *testing.T, h *netlab.Host, p probe) {
	t.Helper()
	err := unix.Sendto(w.senders[h][service.FamilyOf(p.to.Addr())], p.packet(), 0, sockaddr(netip.AddrPortFrom(p.to.Addr(), 0)))
	if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
		t.Fatalf("send from %s to %s: %v", h.Name, p.to, err)
	}
}

// firstProbePort is the first port of clients. Servers have lower ones.
const firstProbePort = 40000

// port returns a port for the client of a probe that no other one had lately.
func (w *wire) port() uint16 {
	w.ports++
	return firstProbePort + w.ports%20000
}

// next returns an unused number.
func (w *wire) next() uint32 {
	w.numbers++
	return w.numbers
}

// look reads what has arrived.
func (w *wire) look() {
	for _, h := range w.hosts {
		for i, fd := range w.receivers[h] {
			w.drain(h, i, fd)
		}
	}
}

func (w *wire) drain(h *netlab.Host, socket, fd int) {
	b := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(fd, b, 0)
		if err != nil {
			return
		}
		w.record(h, socket, b[:n], from)
	}
}

// record records a packet that a raw socket has received. That of IPv4 keeps the header.
func (w *wire) record(h *netlab.Host, socket int, b []byte, from unix.Sockaddr) {
	const syn, flagsAt = 2, 13
	at, udp := 4, socket%2 == 1 // sequence number
	if udp {
		at = 8 // data
	}
	a := arrival{host: h}
	switch f := from.(type) {
	case *unix.SockaddrInet4:
		b = b[min(len(b), int(b[0]&15)*4):]
		a.from = netip.AddrFrom4(f.Addr)
	case *unix.SockaddrInet6:
		a.from = netip.AddrFrom16(f.Addr)
	}
	// Echo servers answer with the same data, and resets have the next sequence number.
	if len(b) < at+4 || binary.BigEndian.Uint16(b[2:]) >= firstProbePort || !udp && (len(b) < 20 || b[flagsAt] != syn) {
		return
	}
	if n := binary.BigEndian.Uint32(b[at:]); n > 0 && n <= w.numbers {
		w.arrived[n] = a
	}
}

// await sends packets between hosts that no rule of a test concerns, and waits for them.
// Those that were sent before have arrived then, unless the kernel served them on another
// processor.
func (w *wire) await(t *testing.T, f service.Family, ways [][2]*netlab.Host) {
	t.Helper()
	waiting := map[uint32]bool{}
	for _, x := range ways {
		like := [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[f]
		n := w.next()
		const port = 9
		p := probe{n, service.UDP, netip.AddrPortFrom(x[0].Addr(like), w.port()), netip.AddrPortFrom(x[1].Addr(like), port)}
		w.send(t, x[0], p)
		waiting[n] = true
	}
	kit.Until(t, "packets that no rule concerns", func() bool {
		w.look()
		for n := range waiting {
			if _, came := w.arrived[n]; came {
				delete(waiting, n)
			}
		}
		return len(waiting) == 0
	})
}
