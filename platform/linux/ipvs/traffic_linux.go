// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// Counters reads the statistics of the virtual servers that are ours. It implements
// traffic.Reader.
//
// The kernel keeps them in any case, so a connection costs nothing more. It adds them up
// every two seconds, and not at all while net.ipv4.vs.run_estimation is 0 (see
// https://docs.kernel.org/networking/ipvs-sysctl.html and ip_vs_est.c).
type Counters struct {
	client *genlClient
	// latest are the statistics of the virtual servers and of their destinations. Those
	// of a virtual server that has carried nothing since are still right.
	latest map[key]serverCounts
}

// serverCounts are the statistics of a virtual server and its destinations.
type serverCounts struct {
	all   traffic.Counts
	dests map[netip.AddrPort]traffic.Counts
}

// NewCounters returns the Counters of one family, in the network namespace of the calling
// thread.
func NewCounters(f service.Family) (*Counters, error) {
	id, err := ensureLoaded()
	if err != nil {
		return nil, err
	}
	c, err := openGenlClient(f, id)
	if err != nil {
		return nil, fmt.Errorf("open a socket for the statistics of IPVS: %w", err)
	}
	return &Counters{client: c}, nil
}

// Kinds implements traffic.Reader.
func (c *Counters) Kinds() traffic.Kinds { return traffic.Kinds{Packets: true, Bytes: true} }

// Read implements traffic.Reader. One request lists all virtual servers. Each that has
// carried something since the last call takes another one.
func (c *Counters) Read(context.Context, *service.Snapshot) ([]traffic.Sample, error) {
	answers, err := c.client.query(cmdGetService, netlink.Dump, noAttrs)
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	var samples []traffic.Sample
	now := make(map[key]serverCounts, len(answers))
	for _, m := range answers {
		x, err := parseServer(m.Data)
		if err != nil {
			return nil, err
		}
		if x.family != af(c.client.family) || x.mark != 0 || !x.owned() {
			continue
		}
		s := c.latest[x.key]
		all, err := parseCounts(m.Data, attrService)
		if err != nil {
			return nil, err
		}
		if s.dests == nil || s.all != all {
			if s, err = c.readDests(x.key, all); err != nil {
				return nil, err
			}
		}
		now[x.key] = s
		for at, n := range s.dests {
			counter := traffic.Counter{Protocol: x.proto, Frontend: netip.AddrPortFrom(x.addr, x.port), Endpoint: at}
			samples = append(samples, traffic.Sample{Counter: counter, Counts: n})
		}
	}
	c.latest = now
	return samples, nil
}

// readDests reads the statistics of the destinations of a virtual server. It has none if
// it was deleted meanwhile.
func (c *Counters) readDests(at key, all traffic.Counts) (serverCounts, error) {
	s := serverCounts{all, map[netip.AddrPort]traffic.Counts{}}
	if all == (traffic.Counts{}) {
		return s, nil
	}
	answers, err := c.client.query(cmdGetDest, netlink.Dump, c.client.serverAttrs(at))
	if errors.Is(err, unix.ESRCH) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("list the destinations of %s: %w", at, err)
	}
	for _, m := range answers {
		d, err := parseDestination(m.Data, c.client.family)
		if err != nil {
			return s, err
		}
		if s.dests[d.addr], err = parseCounts(m.Data, attrDest); err != nil {
			return s, err
		}
	}
	return s, nil
}

// Attributes with statistics (kernel: include/uapi/linux/ip_vs.h). The ones of virtual
// servers and destinations have the same number.
const (
	attrStats64 = 12

	statsConns, statsInPackets, statsOutPackets, statsInBytes, statsOutBytes = 1, 2, 3, 4, 5
)

// parseCounts returns the statistics inside the attribute of type kind.
func parseCounts(text []byte, kind uint16) (traffic.Counts, error) {
	var n traffic.Counts
	err := nested(text, kind, func(d *netlink.AttributeDecoder) {
		if d.Type() != attrStats64 {
			return
		}
		d.Do(func(b []byte) error {
			return attributesOf(b, func(d *netlink.AttributeDecoder) {
				switch d.Type() {
				case statsConns:
					n.Connections = d.Uint64()
				case statsInPackets:
					n.PacketsIn = d.Uint64()
				case statsOutPackets:
					n.PacketsOut = d.Uint64()
				case statsInBytes:
					n.BytesIn = d.Uint64()
				case statsOutBytes:
					n.BytesOut = d.Uint64()
				}
			})
		})
	})
	return n, err
}
