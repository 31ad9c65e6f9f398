// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"os/exec"
	"testing"

	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestMarksOfOthers checks that packets of the node keep their port if a program sets the
// masquerade bit on them, as wg-quick does, and no Service is concerned.
func TestMarksOfOthers(t *testing.T) {
	t.Parallel()
	ipTables := defaultMode()
	ipTables.flags, ipTables.iptables = append(ipTables.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false"), "nft"
	for _, m := range []mode{defaultMode(), ipTables, inUserspace("nft")} {
		t.Run(m.proxyMode(), func(t *testing.T) {
			t.Parallel()
			checkMarks(t, m)
		})
	}
}

func checkMarks(t *testing.T, m mode) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10, plain: true}.on(c.Host("web-1"))
	c.save(t, web)
	c.start(t)
	customer := c.Host("customer")
	if _, err := customer.Echo("", target); err != nil {
		t.Fatal(err)
	}
	for command, to := range map[string]netip.Addr{"iptables": customer.IPv4, "ip6tables": customer.IPv6} {
		mark := exec.Command(command, "-t", "mangle", "-A", "OUTPUT", "-d", to.String(), "-j", "MARK", "--set-xmark", "0xca6c/0xca6c")
		if out, err := program.Run(t, c.Node, mark); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, proto := range []string{"tcp", "udp"} {
			a, err := c.Node.Ask(t.Context(), netlab.Query{Proto: proto, To: netip.AddrPortFrom(to, target)})
			if err != nil || a.Outcome != netlab.Answered || a.Client != a.From {
				t.Errorf("%s to %s: %s, sent from %s and came from %s, %v", proto, to, a.Outcome, a.From, a.Client, err)
			}
		}
	}
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web))
}
