// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"kubeproxy/test/kit"
)

// TestDoctorOfFullConntrack fills the table of a node until the kernel drops entries. Only
// the first network namespace may set the limit, but each one has a count of its own, see
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html. Lost inserts cannot be made
// like this: the kernel inserts most of the packets that clash, see kernel commit
// 6a757c07e51f ("netfilter: conntrack: allow insertion of clashing entries").
func TestDoctorOfFullConntrack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	c.start(t)
	c.awaitProgrammed(t)
	c.awaitSound(t)
	c.set(t, "net/netfilter/nf_conntrack_udp_timeout", "600")
	// A bridge without ports takes any packet, and nobody answers. With ARP, packets that
	// wait for a neighbour would fill the buffer of the socket.
	c.shell(t, "ip link add void type bridge && ip addr add 198.18.0.1/24 dev void && ip link set void arp off up")
	c.fillConntrack(t, netip.MustParsePrefix("198.18.0.0/24"))

	d := c.diagnose(t)
	for id, want := range map[string]string{"conntrack-full": "sysctl -w net.netfilter.nf_conntrack_max=", "early-drop": "sysctl -w net.netfilter.nf_conntrack_max="} {
		if fix, found := d.find(id); !found || !strings.HasPrefix(fix, want) {
			t.Errorf("%s is not found, or fixed by %q: %s", id, fix, d)
		}
	}
	c.shell(t, "conntrack -F")
	if d = c.diagnose(t); d.has("conntrack-full") || !d.has("early-drop") {
		t.Errorf("an empty table that was full: %s", d)
	}
}

// fillConntrack sends packets to the addresses of p until each entry that the kernel may
// have is in use, and a few more.
func (c *cluster) fillConntrack(t *testing.T, p netip.Prefix) {
	t.Helper()
	kit.Must(t, c.Node.Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
		if err != nil {
			return err
		}
		most, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return err
		}
		s, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		defer s.Close()
		to := p.Addr().Next() // of the node
		for n := range most + 200 {
			if n%65535 == 0 {
				to = to.Next()
			}
			if _, err := s.WriteToUDPAddrPort(nil, netip.AddrPortFrom(to, uint16(n%65535)+1)); err != nil {
				return err
			}
		}
		return nil
	}))
}
