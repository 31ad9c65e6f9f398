// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/test/netlab"
)

// TestRoute looks up routes that lead somewhere and nowhere, over both families.
func TestRoute(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{})
	err := lab.Node.Do(func() error {
		for _, line := range strings.Split(`link add out type bridge
link set out up
addr add 198.18.0.1/24 dev out
route add 198.18.1.0/24 via 198.18.0.9
route add blackhole 198.18.2.0/24
route add unreachable 198.18.3.0/24
route add prohibit 198.18.4.0/24
route add blackhole 2001:db8:99::/64`, "\n") {
			if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
				t.Errorf("ip %s: %v\n%s", line, err, out)
			}
		}
		for to, want := range map[string]string{
			"198.18.0.7":     "direct, interface out, source 198.18.0.1",
			"198.18.1.7":     "via 198.18.0.9, interface out, source 198.18.0.1",
			"198.18.0.1":     "to the node itself",
			"198.18.2.1":     "blackhole",
			"198.18.3.1":     "unreachable",
			"198.18.4.1":     "prohibited",
			"2001:db8:99::1": "blackhole",
		} {
			got, err := Route(netip.MustParseAddr(to))
			if err != nil {
				got = err.Error()
			}
			if leads := strings.Contains(want, " "); got != want || leads != (err == nil) {
				t.Errorf("%s: %q, %v, want %q", to, got, err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
