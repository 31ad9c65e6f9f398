// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"os/exec"
	"testing"

	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// What others do to virtual servers, addresses and rules is undone long before the
// sync period is over, logged, counted by the metrics, and told by status.
func TestIPVSDrift(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		m.flags = append(m.flags, "--ipvs-sync-period=1h")
		c := newCluster(t, m)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.save(t, web)
		p := c.start(t)
		want := c.want(t)
		const metric = "kubeproxy_drift_repaired_total"
		for _, deed := range []string{
			"ipvsadm -D -t 10.96.0.10:80",
			"ipvsadm -C",
			"ipvsadm -a -t 10.96.0.10:80 -r 192.0.2.99:80 -m",
			"ip route del table local local 10.96.0.10 dev kube-ipvs0",
			"nft delete table ip kube-ipvs",
			"ip link delete kube-ipvs0",
		} {
			told := p.Log.Count("Others had altered our rules")
			before, _ := p.Metric(t, metric, "ip_family", "IPv4")
			c.sh(t, deed+"\n")
			program.Await(t, deed+" is in "+metric, func() bool { n, _ := p.Metric(t, metric, "ip_family", "IPv4"); return n > before })
			program.Await(t, deed+" is in the log", func() bool { return p.Log.Count("Others had altered our rules") > told })
			c.settleOn(t, want)
		}
		c.check(t, want, c.cells([]*netlab.Host{c.Host("shopper"), c.Host("customer")}, web))
		out, err := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status", "-o=json"))
		var d struct {
			Health struct {
				Status map[string]struct{ DriftFound, DriftRepaired int }
			}
		}
		if err == nil {
			err = json.Unmarshal([]byte(out), &d)
		}
		n, _ := p.Metric(t, metric, "ip_family", "IPv4")
		if s := d.Health.Status["IPv4"]; err != nil || s.DriftRepaired < 6 || s.DriftFound < s.DriftRepaired || s.DriftRepaired != int(n) {
			t.Errorf("status tells of %+v, %v; the metric is %v, in\n%s", s, err, n, out)
		}
	})
}
