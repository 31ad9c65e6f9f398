// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/program"
)

// TestFallbackFromIPVS checks that a mode ipvs that cannot work ends with the reason, or
// with the fallback flag continues with the next mode, in which traffic flows. No kernel
// has this scheduler; some have no IPVS at all.
func TestFallbackFromIPVS(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.flags = append(m.flags, "--proxy-mode=ipvs", "--ipvs-scheduler=none", "--iptables-localhost-nodeports=false")
	m.iptables = "nft"
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	out, err := program.Run(t, c.Node, c.command(append([]string{"--manifests=" + c.dir}, m.flags...)...))
	said := strings.Split(strings.TrimSpace(out), "\n")
	const sentence = "kube-proxy: mode ipvs cannot work here: IPv4 is the primary family by bindAddress 0.0.0.0 and cannot be programmed: IPVS for IPv4: the kernel has no "
	if last := said[len(said)-1]; err == nil || err.Error() != "exit status 1" || !strings.HasPrefix(last, sentence) || !strings.Contains(last, "(module ip_vs") {
		t.Errorf("ended with %v:\n%s\nwant exit status 1 and at last %q", err, out, sentence)
	}
	c.mode.flags = append(m.flags, "--proxy-mode-fallback")
	p := c.start(t)
	p.AwaitLog(t, "Warning: a mode cannot work here; trying the next", `mode="ipvs"`, `next="iptables"`, "the kernel has no ")
	p.AwaitLog(t, `"Starting"`, `mode="iptables"`, `modeFrom="--proxy-mode-fallback, since ipvs cannot work here"`)
	if mode := string(p.Fetch(t, program.MetricsAddr, "/proxyMode").Body); mode != "iptables" {
		t.Errorf("/proxyMode is %q", mode)
	}
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web))
	c.checkOnlyMode(t, "iptables-nft")
	for _, f := range service.Families {
		if n, _ := p.Metric(t, "kubeproxy_condition", "condition", "leftovers-"+f.String()); n != 0 {
			t.Errorf("%s: something is left of a mode that never ran", f)
		}
	}
}
