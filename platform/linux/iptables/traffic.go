// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// Counters reads how often the rules that translate connections have matched. It
// implements traffic.Reader.
//
// The kernel counts for each rule in any case, and table nat sees one packet of a
// connection, so a connection costs nothing more. Reading the counters lists table nat,
// and the cost grows with the number of endpoints. A rule counts from 0 again when its
// chain is written, for example when the endpoints of the Service change.
type Counters struct {
	family service.Family
	list   func(context.Context) (string, error) // table nat with counters, as iptables-save prints it
}

// Kinds implements traffic.Reader.
func (c *Counters) Kinds() traffic.Kinds { return traffic.Kinds{} }

// Read implements traffic.Reader.
func (c *Counters) Read(ctx context.Context, want *service.Snapshot) ([]traffic.Sample, error) {
	text, err := c.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask %s what its rules have counted: %w", command(c.family), err)
	}
	ports := map[string]service.PortName{}
	for p := range want.Ports(c.family) {
		for _, x := range c.lists(p) {
			ports[x.name] = p.Name
		}
	}
	sums := map[traffic.Counter]uint64{}
	for line := range strings.Lines(text) {
		chain, to, n := parseTranslation(line)
		if name, known := ports[chain]; known && to.IsValid() {
			sums[traffic.Counter{Name: name, Endpoint: to}] += n
		}
	}
	all := make([]traffic.Sample, 0, len(sums))
	for k, n := range sums {
		all = append(all, traffic.Sample{Counter: k, Counts: traffic.Counts{Connections: n}})
	}
	return all, nil
}

// lists returns the chains that hold endpoints of p.
func (c *Counters) lists(p *service.Port) []chain {
	l := layout{family: c.family}
	cluster, _ := l.listChains(p, nil, service.PolicyCluster)
	local, _ := l.listChains(p, nil, service.PolicyLocal)
	return append(cluster, local...)
}

// parseTranslation parses "[PACKETS:BYTES] -A CHAIN ... --to-destination ENDPOINT". The
// endpoint of another line is invalid.
func parseTranslation(line string) (chain string, to netip.AddrPort, packets uint64) {
	const destination = " --to-destination "
	i := strings.Index(line, destination)
	count, rest, found := strings.Cut(line, "] -A ")
	if i < 0 || !found {
		return "", netip.AddrPort{}, 0
	}
	chain, _, _ = strings.Cut(rest, " ")
	number, _, _ := strings.Cut(strings.TrimPrefix(count, "["), ":")
	packets, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return "", netip.AddrPort{}, 0
	}
	address, _, _ := strings.Cut(strings.TrimSpace(line[i+len(destination):]), " ")
	to, _ = netip.ParseAddrPort(address)
	return chain, to, packets
}
