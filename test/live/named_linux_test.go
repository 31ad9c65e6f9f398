// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// named makes a proxy serve the Services labelled mesh. ranges is what ClusterIPs come from.
const named, ranges = "--service-proxy-name=mesh", `apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12, "fd00:10:96::/112"]}
`

// A proxy that serves labelled Services runs beside one that serves the rest, and
// beside a table of kube-proxy. It takes nothing from either, at its start, after a
// restart and in a cleanup.
func TestNamedProxy(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nftables", "iptables-nft", "iptables-legacy"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namedProxy(t, modeNamed(name))
		})
	}
}

func namedProxy(t *testing.T, rest mode) {
	c := newCluster(t, rest)
	web, mesh := app{name: "web", number: 10}.on(c.Host("web-1")), app{name: "mesh", number: 11}.on(c.Host("web-2"))
	c.save(t, web)
	c.label(t, mesh)
	c.write(t, "ranges.yaml", []byte(ranges))
	p := c.start(t)
	nft(t, c.Node, "add table ip kube-proxy\n")
	m := defaultMode()
	m.flags = append(slices.Clone(m.flags), named)
	for _, number := range []int{12, 13} {
		d, q := c.startSecond(t, m, web)
		d.label(t, mesh)
		d.write(t, "ranges.yaml", []byte(ranges))
		for _, f := range service.Families {
			q.AwaitLog(t, `"Programmed"`, "nftables "+f.String())
		}
		c.save(t, app{name: "late", number: number}.on(c.Host("web-1")))
		c.awaitClusterIPs(t, map[string]app{"web-1": web, "web-2": mesh})
		c.awaitProgrammed(t) // nothing of the first one's is gone
		for metrics, x := range map[string]*program.Proxy{program.MetricsAddr: p, secondMetrics: q} {
			if r := reportOf(t, x, metrics); r.Standby != "" || r.Conditions[otherProxy] != "" {
				t.Errorf("%s: stands by for %q, %q", metrics, r.Standby, r.Conditions[otherProxy])
			}
		}
		q.Stop(t)
	}
	if out, err := program.Run(t, c.Node, c.command("--cleanup", named)); err != nil {
		t.Errorf("cleanup: %v\n%s", err, out)
	}
	for table, there := range map[string]bool{nftables.UpstreamTable: true, nftables.TableOf("mesh"): false} {
		if what := c.finds(t, nftables.Leftovers{Family: service.IPv4, Table: table}); (what != "") != there {
			t.Errorf("after the named proxy's cleanup table %s: %q, want it there: %t", table, what, there)
		}
	}
	c.awaitClusterIPs(t, map[string]app{"web-1": web})
	c.awaitProgrammed(t)
	p.Stop(t)
}

const otherProxy = "other-proxy"

// label saves a as a Service of the named proxy.
func (c *cluster) label(t *testing.T, a app) {
	t.Helper()
	const name = "service.kubernetes.io/service-proxy-name"
	s := a.service()
	s.Labels = map[string]string{name: "mesh"}
	c.write(t, a.name+".yaml", program.Manifest[any](t, s, a.slice(service.IPv4), a.slice(service.IPv6)))
}

// awaitClusterIPs waits until the ClusterIPs of the apps reach their hosts.
func (c *cluster) awaitClusterIPs(t *testing.T, all map[string]app) {
	t.Helper()
	for host, a := range all {
		for _, f := range service.Families {
			kit.Until(t, "that "+host+" answers", func() bool {
				r, err := c.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.at(service.ClusterIP, f)})
				return err == nil && r.Backend == host
			})
		}
	}
}

// In the other modes the rules of all proxies have the same names, so the named
// proxy does not start.
func TestNamedProxyElsewhere(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.Host("web-1")))
	c.start(t)
	for _, mode := range []string{"iptables", "ipvs", "userspace"} {
		out, err := program.Run(t, c.Node, kubeProxy.Command("--manifests="+c.dir, "--proxy-mode="+mode, named))
		if err == nil || !strings.Contains(out, "mode "+mode+" cannot work with --service-proxy-name mesh") {
			t.Errorf("mode %s: %v\n%s", mode, err, out)
		}
	}
	c.awaitProgrammed(t)
}
