// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// Commands for queries and for settings (kernel: include/uapi/linux/ip_vs.h).
const (
	cmdGetService, cmdGetDest, cmdSetConfig, cmdGetConfig = 4, 8, 12, 13

	attrTCP, attrTCPFin, attrUDP = 4, 5, 6
)

// timeouts are the connection timeouts of IPVS.
type timeouts struct{ tcp, tcpFin, udp time.Duration }

// query sends a command with attrs and returns the replies.
func (r *genlClient) query(command uint8, flags netlink.HeaderFlags, attrs func(*netlink.AttributeEncoder)) ([]genetlink.Message, error) {
	e := netlink.NewAttributeEncoder()
	attrs(e)
	text, err := e.Encode()
	if err != nil {
		return nil, err
	}
	m := genetlink.Message{Header: genetlink.Header{Command: command, Version: 1}, Data: text}
	var answers []genetlink.Message
	err = r.retryOnReload(func() (err error) {
		answers, err = r.conn.Execute(m, r.familyID, netlink.Request|flags)
		return err
	})
	return answers, err
}

// serverAttrs returns the attributes that identify the virtual server at.
func (r *genlClient) serverAttrs(at key) func(*netlink.AttributeEncoder) {
	return func(e *netlink.AttributeEncoder) {
		e.Nested(attrService, func(e *netlink.AttributeEncoder) error { return r.encodeServer(e, &op{verb: delServer, key: at}) })
	}
}

func noAttrs(*netlink.AttributeEncoder) {}

// listServers implements client.
func (r *genlClient) listServers() (map[key]*observedServer, error) {
	answers, err := r.query(cmdGetService, netlink.Dump, noAttrs)
	if err != nil {
		return nil, err
	}
	servers := make(map[key]*observedServer, len(answers))
	for _, m := range answers {
		x, err := parseServer(m.Data)
		if err != nil {
			return nil, err
		}
		if x.family == af(r.family) && x.mark == 0 {
			servers[x.key] = &observedServer{server: x.server}
		}
	}
	return servers, nil
}

// getServer implements client.
func (r *genlClient) getServer(at key) (server, error) {
	answers, err := r.query(cmdGetService, 0, r.serverAttrs(at))
	if err != nil {
		return server{}, err
	}
	if len(answers) != 1 {
		return server{}, fmt.Errorf("the kernel has %d answers about %s, want one", len(answers), at)
	}
	x, err := parseServer(answers[0].Data)
	return x.server, err
}

// listDests implements client.
func (r *genlClient) listDests(at key) ([]dest, error) {
	answers, err := r.query(cmdGetDest, netlink.Dump, r.serverAttrs(at))
	if err != nil {
		return nil, err
	}
	var dests []dest
	for _, m := range answers {
		x, err := parseDestination(m.Data, r.family)
		if err != nil {
			return nil, err
		}
		dests = append(dests, x)
	}
	slices.SortFunc(dests, func(a, b dest) int { return a.addr.Compare(b.addr) })
	return dests, nil
}

func (r *genlClient) getTimeouts() (timeouts, error) {
	answers, err := r.query(cmdGetConfig, 0, noAttrs)
	if err != nil {
		return timeouts{}, err
	}
	var t timeouts
	for _, m := range answers {
		err := attributesOf(m.Data, func(d *netlink.AttributeDecoder) {
			switch d.Type() {
			case attrTCP:
				t.tcp = time.Duration(d.Uint32()) * time.Second
			case attrTCPFin:
				t.tcpFin = time.Duration(d.Uint32()) * time.Second
			case attrUDP:
				t.udp = time.Duration(d.Uint32()) * time.Second
			}
		})
		if err != nil {
			return timeouts{}, err
		}
	}
	return t, nil
}

// setTimeouts implements client.
func (r *genlClient) setTimeouts(t timeouts) error {
	_, err := r.query(cmdSetConfig, netlink.Acknowledge, func(e *netlink.AttributeEncoder) {
		e.Uint32(attrTCP, uint32(t.tcp/time.Second))
		e.Uint32(attrTCPFin, uint32(t.tcpFin/time.Second))
		e.Uint32(attrUDP, uint32(t.udp/time.Second))
	})
	return err
}

// parsedServer is a virtual server as the kernel returns it.
type parsedServer struct {
	key
	server
	family uint16
	mark   uint32 // the packet mark that selects its packets, if no address does
}

func parseServer(text []byte) (parsedServer, error) {
	var x parsedServer
	var addr []byte
	err := nested(text, attrService, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case serviceFamily:
			x.family = d.Uint16()
		case serviceProtocol:
			x.proto = service.Protocol(d.Uint16())
		case serviceAddr:
			addr = d.Bytes()
		case servicePort:
			x.port = bigEndian(d)
		case serviceMark:
			x.mark = d.Uint32()
		case serviceScheduler:
			x.scheduler, _, _ = strings.Cut(d.String(), "\x00")
		case serviceFlags:
			d.Do(func(b []byte) error { return decodeFixed(b, 4, func() { x.flags = binary.NativeEndian.Uint32(b) }) })
		case serviceTimeout:
			x.timeout = d.Uint32()
		}
	})
	if x.mark == 0 && err == nil {
		x.addr, err = addrOf(addr, x.family)
	}
	return x, err
}

func parseDestination(text []byte, f service.Family) (dest, error) {
	var x dest
	var addr []byte
	var port, family = uint16(0), af(f)
	err := nested(text, attrDest, func(d *netlink.AttributeDecoder) {
		switch d.Type() {
		case destAddr:
			addr = d.Bytes()
		case destPort:
			port = bigEndian(d)
		case destForward:
			x.wrongMode = d.Uint32()&fwdMethodMask != 0
		case destWeight:
			x.weight = uint16(d.Uint32())
		case destActive, destInactive:
			x.conns += d.Uint32()
		case destFamily:
			family = d.Uint16()
		}
	})
	if err != nil {
		return dest{}, err
	}
	a, err := addrOf(addr, family)
	x.addr = netip.AddrPortFrom(a, port)
	return x, err
}

// fwdMethodMask is the mask of the forwarding method. 0 is masquerading.
const fwdMethodMask = 7

// nested calls each for the attributes inside those of type kind.
func nested(text []byte, kind uint16, each func(*netlink.AttributeDecoder)) error {
	return attributesOf(text, func(d *netlink.AttributeDecoder) {
		if d.Type() == kind {
			d.Do(func(b []byte) error { return attributesOf(b, each) })
		}
	})
}

func attributesOf(text []byte, each func(*netlink.AttributeDecoder)) error {
	d, err := netlink.NewAttributeDecoder(text)
	if err != nil {
		return err
	}
	for d.Next() {
		each(d)
	}
	return d.Err()
}

func bigEndian(d *netlink.AttributeDecoder) (n uint16) {
	d.Do(func(b []byte) error { return decodeFixed(b, 2, func() { n = binary.BigEndian.Uint16(b) }) })
	return n
}

// decodeFixed calls read if b has at least n bytes.
func decodeFixed(b []byte, n int, read func()) error {
	if len(b) < n {
		return fmt.Errorf("an attribute of IPVS has %d bytes, want %d", len(b), n)
	}
	read()
	return nil
}

// addrOf returns the address in text, which always has room for an IPv6 address.
func addrOf(text []byte, family uint16) (netip.Addr, error) {
	n := 4
	if family == unix.AF_INET6 {
		n = 16
	}
	var a netip.Addr
	err := decodeFixed(text, n, func() { a, _ = netip.AddrFromSlice(text[:n]) })
	return a, err
}
