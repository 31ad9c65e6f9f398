// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
	"kubeproxy/platform/linux/netlink"
)

// Counters reads the statistics of the virtual servers that are ours. It implements
// traffic.Reader.
//
// The kernel keeps them in any case, so a connection costs nothing more. It adds them up
// every two seconds, and not at all while net.ipv4.vs.run_estimation is 0 (kernel:
// net/netfilter/ipvs/ip_vs_est.c; for the setting see
// https://docs.kernel.org/networking/ipvs-sysctl.html).
type Counters struct {
	requests *requester
	// latest are the statistics of the virtual servers and of their destinations. Those
	// of a virtual server without new traffic are still right.
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
	r, err := openRequester(f, id)
	if err != nil {
		return nil, fmt.Errorf("open a socket for the statistics of IPVS: %w", err)
	}
	return &Counters{requests: r}, nil
}

// Kinds implements traffic.Reader.
func (c *Counters) Kinds() traffic.Kinds { return traffic.Kinds{Packets: true, Bytes: true} }

// Read implements traffic.Reader. One request lists all virtual servers. Each one with
// traffic since the last call needs another request.
func (c *Counters) Read(context.Context, *service.Snapshot) ([]traffic.Sample, error) {
	// The replies are valid until the next request, and each may lead to one.
	servers := map[key]traffic.Counts{}
	err := c.requests.query(cmdGetService, unix.NLM_F_DUMP, encodeNothing, func(attrs []byte) error {
		x, err := parseServer(attrs)
		if err == nil && x.family == af(c.requests.family) && x.mark == 0 && x.owned() {
			servers[x.key] = parseCounts(attrs, attrService)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	var samples []traffic.Sample
	now := make(map[key]serverCounts, len(servers))
	for server, all := range servers {
		s := c.latest[server]
		if s.dests == nil || s.all != all {
			if s, err = c.readDests(server, all); err != nil {
				return nil, err
			}
		}
		now[server] = s
		for at, n := range s.dests {
			counter := traffic.Counter{Protocol: server.proto, Frontend: netip.AddrPortFrom(server.addr, server.port), Endpoint: at}
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
	r := c.requests
	err := r.query(cmdGetDest, unix.NLM_F_DUMP, func() { r.encodeServer(at, nil) }, func(attrs []byte) error {
		d, err := parseDestination(attrs, r.family)
		if err == nil {
			s.dests[d.addr] = parseCounts(attrs, attrDest)
		}
		return err
	})
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return s, fmt.Errorf("list the destinations of %s: %w", at, err)
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
func parseCounts(attrs []byte, kind uint16) traffic.Counts {
	var n traffic.Counts
	to := map[uint16]*uint64{
		statsConns: &n.Connections, statsInPackets: &n.PacketsIn, statsOutPackets: &n.PacketsOut, statsInBytes: &n.BytesIn, statsOutBytes: &n.BytesOut,
	}
	for stat, v := range netlink.Attributes(netlink.Attribute(netlink.Attribute(attrs, kind), attrStats64)) {
		if p := to[stat]; p != nil {
			*p = netlink.Native64(v)
		}
	}
	return n
}
