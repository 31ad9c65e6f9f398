// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// TestNodeLocalDNS checks that a cache on the node that has the ClusterIP of the DNS server
// on an interface of its own, and exempts it from connection tracking as NodeLocal DNSCache
// does (https://github.com/kubernetes/dns, cmd/node-cache/app/cache_app.go), answers in
// place of the endpoints, for pods and for the node.
func TestNodeLocalDNS(t *testing.T) {
	t.Run("nftables", func(t *testing.T) { t.Parallel(); checkNodeLocalDNS(t, defaultMode()) })
	t.Run("iptables", func(t *testing.T) { eachVariant(t, checkNodeLocalDNS) })
}

func checkNodeLocalDNS(t *testing.T, m mode) {
	c := newCluster(t, m)
	dns := app{name: "dns", number: 10, plain: true}.on(c.Host("web-1"))
	c.save(t, dns)
	c.start(t)
	at := netip.AddrPortFrom(dns.address(service.ClusterIP, service.IPv4), 80)
	askers := []*netlab.Host{c.Host("shopper"), c.Node}
	for _, h := range askers {
		kit.Until(t, h.Name+" to be answered by the endpoint", func() bool {
			got, err := h.Ask(t.Context(), netlab.Query{Proto: "udp", To: at})
			return err == nil && got.Backend == "web-1"
		})
	}
	c.run(t, "ip", "link", "add", "nodelocaldns", "type", "bridge")
	c.run(t, "ip", "addr", "add", at.Addr().String()+"/32", "dev", "nodelocaldns")
	nft(t, c.Node, `table ip nodelocaldns {
  chain prerouting { type filter hook prerouting priority raw; ip daddr `+at.Addr().String()+` udp dport 80 notrack; }
  chain output { type filter hook output priority raw; ip daddr `+at.Addr().String()+` udp dport 80 notrack; ip saddr `+at.Addr().String()+` udp sport 80 notrack; }
}
`)
	cache, err := c.Node.ListenPacket(t.Context(), "udp", at.String())
	kit.Must(t, err)
	t.Cleanup(func() { _ = cache.Close() })
	go func() {
		question := make([]byte, 512)
		for {
			_, from, err := cache.ReadFrom(question)
			if err != nil {
				return
			}
			_, _ = cache.WriteTo([]byte("cache"), from)
		}
	}()
	for _, h := range askers {
		kit.Until(t, h.Name+" to be answered by the cache", func() bool { return asksDatagram(t, h, at) == "cache" })
	}
}

// asksDatagram returns what answers a datagram.
func asksDatagram(t *testing.T, h *netlab.Host, at netip.AddrPort) string {
	conn, err := h.Dial(t.Context(), "udp", at.String())
	kit.Must(t, err)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	_, err = conn.Write([]byte("question"))
	answer := make([]byte, 512)
	if n, readErr := conn.Read(answer); err == nil && readErr == nil {
		return string(answer[:n])
	}
	return ""
}
