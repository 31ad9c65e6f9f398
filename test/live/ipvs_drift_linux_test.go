// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// ipvsTamperings are changes of others to the state of mode ipvs for web.
var ipvsTamperings = []string{
	"ipvsadm -D -t 10.96.0.10:80",
	"ipvsadm -C",
	"ipvsadm -a -t 10.96.0.10:80 -r 192.0.2.99:80 -m",
	"ip route del table local local 10.96.0.10 dev kube-ipvs0",
	"ip link delete kube-ipvs0",
	"ipset del KUBE-VS-VIRTUAL-IPS 10.96.0.10",
	"ipset add KUBE-VS-DROPPED 10.96.0.10,tcp:80",
	"ipset flush KUBE-VS-CLUSTER-IPS",
	"ipset del KUBE-VS-VIRTUAL-SERVERS 10.96.0.10,udp:80",
	"ipset flush KUBE-VS-VIRTUAL-SERVERS",
	"ipset flush KUBE-VS-NODE-IPS",
	"ip link set kube-ipvs0 down",
	"ipvsadm -E -t 10.96.0.10:80 -s wlc",
	"ipvsadm -E -u 10.96.0.10:80 -s rr -p 300 -M 255.255.255.0",
}

// TestIPVSDrift checks that changes to virtual servers, addresses, ipsets and rules are
// repaired long before the sync period is over, logged, counted by the metrics, and shown
// by status. A set that rules refer to cannot be removed.
func TestIPVSDrift(t *testing.T) {
	eachIPVSVariant(t, func(t *testing.T, m mode, variant string) {
		m.flags = append(m.flags, "--ipvs-sync-period=1h")
		c := newCluster(t, m)
		c.useVariant(t, variant)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.save(t, web)
		p := c.start(t)
		want := c.want(t)
		c.sh(t, "if ipset destroy KUBE-VS-VIRTUAL-SERVERS; then exit 1; fi\n")
		for _, deed := range ipvsTamperings {
			c.tamperIPVSAndAwaitRepair(t, p, deed)
			c.awaitSnapshot(t, want)
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
		n, _ := p.Metric(t, driftMetric, "ip_family", "IPv4")
		s := d.Health.Status["IPv4"]
		all := s.DriftRepaired + d.Health.Status["IPv6"].DriftRepaired
		if err != nil || all < len(ipvsTamperings) || s.DriftFound < s.DriftRepaired || s.DriftRepaired != int(n) {
			t.Errorf("status reports %+v, %v; the metric is %v, in\n%s", s, err, n, out)
		}
	})
}

const driftMetric = "kubeproxy_drift_repaired_total"

// tamperIPVSAndAwaitRepair makes a change, and requires that p repairs and reports it. An
// interface belongs to both families, so the first one that checks repairs it.
func (c *cluster) tamperIPVSAndAwaitRepair(t *testing.T, p *program.Proxy, deed string) {
	t.Helper()
	repaired := func() (n float64) {
		for _, f := range service.Families {
			v, _ := p.Metric(t, driftMetric, "ip_family", f.String())
			n += v
		}
		return n
	}
	reported, before := p.Log.Count("Others had altered our rules"), repaired()
	c.sh(t, deed+"\n")
	kit.Until(t, deed+" is in "+driftMetric, func() bool { return repaired() > before })
	kit.Until(t, deed+" is in the log", func() bool { return p.Log.Count("Others had altered our rules") > reported })
}

// TestIPVSSharedMark checks the condition that another program uses the bit of the mark for
// masquerading, while a rule of policy routing says so, as that of wg-quick.
func TestIPVSSharedMark(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		m.flags = append(m.flags, "--ipvs-sync-period=1s")
		c := newCluster(t, m)
		c.save(t, app{name: "web", number: 10, plain: true}.on(c.Host("web-1")))
		p := c.start(t)
		shows := func() bool {
			out, _ := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status")) // it fails while there are conditions
			return strings.Contains(string(p.Fetch(t, program.HealthAddr, "/healthz").Body), "shared-mark-IPv4") && strings.Contains(string(out), "fwmark 0xca6c")
		}
		if shows() {
			t.Error("the condition is there before the rule")
		}
		c.shell(t, "ip rule add not fwmark 51820 table 51820")
		kit.Until(t, "the condition", shows)
		c.shell(t, "ip rule del not fwmark 51820 table 51820")
		kit.Until(t, "the condition to go", func() bool { return !shows() })
	})
}
