// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/binary"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// TestPacketsOutsideOfTheWindow sends packets of an endpoint that are outside of the TCP
// window. Connection tracking marks them invalid and does not translate them. A client
// that received one would reset a connection that it does not know, and the endpoint
// would take that reset for its own connection, see kubernetes/kubernetes#74839.
// Kubernetes' own test sends such a packet, too.
func TestPacketsOutsideOfTheWindow(t *testing.T) {
	t.Parallel()
	outsideOfTheWindow(t, defaultMode())
}

func TestIPTablesPacketsOutsideOfTheWindow(t *testing.T) { eachVariant(t, outsideOfTheWindow) }

func TestUserspacePacketsOutsideOfTheWindow(t *testing.T) { withUserspace(t, outsideOfTheWindow) }

func TestIPVSPacketsOutsideOfTheWindow(t *testing.T) { withIPVS(t, outsideOfTheWindow) }

func outsideOfTheWindow(t *testing.T, m mode) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.Host("web-3"))
	own := app{name: "own", number: 11}.on(c.Host("web-1"))
	c.save(t, web, own)
	c.start(t)
	c.checkOutOfWindow(t, web, own)
	// With nf_conntrack_tcp_be_liberal such packets are valid, so none may be dropped.
	// See https://docs.kernel.org/networking/nf_conntrack-sysctl.html
	err := c.Node.Do(func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", []byte("1"), 0)
	})
	if err != nil {
		t.Fatal(err)
	}
	c.checkOutOfWindow(t, web, own)
}

// checkOutOfWindow lets the endpoint of each app send such a packet on connections from a
// pod, and requires that the connections go on.
func (c *cluster) checkOutOfWindow(t *testing.T, apps ...app) {
	t.Helper()
	for _, a := range apps {
		server := a.pods[0].host
		for _, x := range c.cells([]*netlab.Host{c.Host("shopper")}, a) {
			if x.Proto == service.TCP && x.Name == "ClusterIP of "+a.name {
				sendOutOfWindow(t, server, open(t, x, c.port()), x.To.Addr())
			}
		}
	}
}

// sendOutOfWindow sends such a packet from server to the client of conversation o.
func sendOutOfWindow(t *testing.T, server *netlab.Host, o conversation, dialed netip.Addr) {
	t.Helper()
	wire, raw := -1, -1
	err := server.Do(func() (err error) {
		if wire, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		family := unix.AF_INET6
		if dialed.Is4() {
			family = unix.AF_INET
		}
		raw, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	})
	defer unix.Close(wire)
	defer unix.Close(raw)
	if err != nil {
		t.Fatal(err)
	}
	ip := [...]uint16{unix.ETH_P_IP, unix.ETH_P_IPV6}[service.FamilyOf(dialed)]
	kit.Must(t, unix.Bind(wire, &unix.SockaddrLinklayer{Protocol: ip<<8 | ip>>8}))
	a, err := o.conn.Ask(t.Context())
	if err != nil || a.Outcome != netlab.Answered {
		t.Fatalf("%s: %s, %v", o.name, a.Outcome, err)
	}
	o.server = a.Backend
	last := segment{}
	for b := make([]byte, 1<<16); ; {
		n, _, err := unix.Recvfrom(wire, b, 0)
		if err != nil {
			break
		}
		if x, ok := parse(b[:n]); ok && x.from == a.Client && x.to == a.At {
			last = x
		}
	}
	if !last.from.IsValid() {
		t.Fatalf("%s: no packet came from %s", o.name, a.Client)
	}
	to := netip.AddrPortFrom(a.Client.Addr(), 0) // a raw socket has no ports
	kit.Must(t, unix.Sendto(raw, last.outOfWindow(), 0, sockaddr(to)))
	for range 20 { // the effect takes a moment
		if a, err := o.conn.Ask(t.Context()); err != nil || a.Backend != o.server {
			t.Fatalf("%s: %s %s, %v; want %s to go on", o.name, a.Outcome, a.Backend, err, o.server)
		}
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16()}
}

// segment is a TCP packet.
type segment struct {
	from, to netip.AddrPort
	next     uint32 // sequence number of what follows it
	ack      uint32
}

// parse parses a packet that begins with its IP header.
func parse(b []byte) (segment, bool) {
	var x segment
	var from, to netip.Addr
	var tcp []byte
	switch {
	case len(b) >= 40 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_TCP:
		from, _ = netip.AddrFromSlice(b[12:16])
		to, _ = netip.AddrFromSlice(b[16:20])
		tcp = b[int(b[0]&15)*4 : binary.BigEndian.Uint16(b[2:])]
	case len(b) >= 60 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_TCP:
		from, _ = netip.AddrFromSlice(b[8:24])
		to, _ = netip.AddrFromSlice(b[24:40])
		tcp = b[40 : 40+int(binary.BigEndian.Uint16(b[4:]))]
	default:
		return x, false
	}
	x.from = netip.AddrPortFrom(from, binary.BigEndian.Uint16(tcp))
	x.to = netip.AddrPortFrom(to, binary.BigEndian.Uint16(tcp[2:]))
	x.next = binary.BigEndian.Uint32(tcp[4:]) + uint32(len(tcp)-int(tcp[12]>>4)*4)
	x.ack = binary.BigEndian.Uint32(tcp[8:])
	return x, true
}

// outOfWindow returns an answer to x far outside of the window. A reset that answers it
// carries a sequence number that the other side accepts.
func (x segment) outOfWindow() []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b, x.to.Port())
	binary.BigEndian.PutUint16(b[2:], x.from.Port())
	binary.BigEndian.PutUint32(b[4:], x.ack+1<<30)
	binary.BigEndian.PutUint32(b[8:], x.next)
	const words, ack = 5 << 4, 1 << 4
	b[12], b[13] = words, ack
	binary.BigEndian.PutUint16(b[14:], 1<<15)
	pseudo := append(x.to.Addr().AsSlice(), x.from.Addr().AsSlice()...)
	pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, byte(len(b)))
	var sum uint32
	for data := append(pseudo, b...); len(data) > 0; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum))
	return b
}
