// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// TestStatusOfBlockedTraffic checks that status fails while no traffic can flow, although
// the rules are in force: the kernel does not forward, or a health check of a load
// balancer cannot be answered. Health pages keep their status, as a restart would not
// help.
func TestStatusOfBlockedTraffic(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	switches := []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"}
	set := func(file, value string) {
		kit.Must(t, c.Node.Do(func() error { return os.WriteFile(file, []byte(value), 0) }))
	}
	for _, file := range switches {
		set(file, "0")
	}
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	p := c.start(t)
	// says waits until status exits with code and has all words.
	var asked []string
	says := func(code int, words ...string) {
		t.Helper()
		kit.Until(t, "status to say "+strings.Join(words, ", "), func() bool {
			cmd := exec.Command(kubeProxy.Path, append([]string{"status"}, asked...)...)
			out, err := program.Run(t, c.Node, cmd)
			if err != nil && cmd.ProcessState == nil {
				t.Fatal(err)
			}
			out = strings.Join(strings.Fields(out), " ") // without the breaks of lines
			for _, w := range words {
				if !strings.Contains(out, w) {
					return false
				}
			}
			return cmd.ProcessState.ExitCode() == code
		})
	}
	says(1, ": not healthy", "net.ipv4.ip_forward is 0 and should be 1", "net.ipv6.conf.all.forwarding is 0 and should be 1")
	for _, path := range []string{"/healthz", "/livez"} {
		if page := p.Fetch(t, program.HealthAddr, path); page.Status != 200 || !strings.Contains(string(page.Body), `"blocked":["setting-net.ipv4.ip_forward",`) {
			t.Errorf("%s: %d %s; want 200 and what blocks", path, page.Status, page.Body)
		}
	}
	asked = []string{"shop/web"}
	says(1, "is not healthy, as traffic is blocked by setting-net.ipv4.ip_forward", "shop/web: programmed")
	asked = nil
	set(switches[0], "1")
	says(1, ": not healthy", "blocked by setting-net.ipv6.conf.all.forwarding")
	set(switches[1], "1")
	says(0, ": healthy")

	taken := netip.MustParseAddrPort("192.0.2.10:30100")
	l, err := c.Node.Listen(t.Context(), "tcp4", taken.String())
	kit.Must(t, err)
	c.write(t, "checked.yaml", []byte(strings.NewReplacer("NUMBER", "1", "PORT", "30100").Replace(checkedApp)))
	says(1, "blocked by health-checks", "shop/checked-1", "1 with a health check that is not answered")
	kit.Must(t, l.Close())
	says(0, ": healthy")
}
