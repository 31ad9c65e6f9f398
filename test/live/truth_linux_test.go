// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// says waits until a command of kube-proxy exits with code and prints all words.
func (c *cluster) says(t *testing.T, line string, code int, words ...string) {
	t.Helper()
	var got int
	var out string
	defer func() {
		if t.Failed() {
			t.Logf("%s: exit %d\n%s", line, got, out)
		}
	}()
	kit.Until(t, line+" to say "+strings.Join(words, ", "), func() bool {
		got, out = c.ask(t, strings.Fields(line)...)
		flat := strings.Join(strings.Fields(out), " ")
		return got == code && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(flat, w) })
	})
}

// TestNodePortsAtNoAddress has NodePorts that none of the node's addresses answers: no
// command calls them served, and all give the reason.
func TestNodePortsAtNoAddress(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--proxy-mode=nftables", "--proxy-mode=iptables"} {
		t.Run(flag, func(t *testing.T) {
			m := defaultMode()
			m.flags = append(slices.Clip(m.flags), flag, "--nodeport-addresses=10.9.0.0/16,fd09::/64")
			c := newCluster(t, m)
			c.save(t, app{name: "web", number: 10}.on(c.webs()...))
			p := c.launch(t)
			const why = "nodePortAddresses 10.9.0.0/16 has none of 192.0.2.10"
			c.says(t, "status", 0, "node-port-addresses-IPv4 no IPv4 address answers NodePorts: "+why, "1 with a port that serves no client")
			c.says(t, "status shop/web", 0, "node:30010 lines NodePort Cluster 4 at no address: "+why, "10.96.0.10:80 lines ClusterIP Cluster 4 served")
			c.says(t, "status --failing", 0, "shop/web", "at no address: "+why)
			c.says(t, "explain outside 192.0.2.10:30010", 0, "NodePort 30010 of service shop/web is not at this address: "+why)
			if n, _ := p.Metric(t, "kubeproxy_unserved_services", "reason", "noAddress"); n != 1 {
				t.Errorf("kubeproxy_unserved_services at no address is %v, want 1", n)
			}
			if n := p.Status(t, program.HealthAddr, "/healthz"); n != 200 {
				t.Errorf("/healthz %d, want 200", n)
			}
			if d := c.diagnose(t); !d.has("proxy-condition") {
				t.Errorf("doctor does not know: %+v", d)
			}
		})
	}
}

// TestRelayThatReachesNoEndpoint kills the process of the only endpoint: each command knows
// that connections fail, until one succeeds again.
func TestRelayThatReachesNoEndpoint(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.flags = append(slices.Clip(m.flags), "--proxy-mode=userspace", "--nodeport-addresses=all,localhost")
	c := newCluster(t, m)
	web := app{name: "web", number: 10, plain: true}.on(c.Host("shopper")) // where nobody listens
	c.save(t, web)
	p := c.launch(t)
	p.AwaitLogs(t, `"Programmed"`, "userspace FAMILY")
	dial := func(want netlab.Outcome) {
		t.Helper()
		for range 3 {
			awaitOutcome(t, "the ClusterIP to be "+want.String(), c.Host("web-1"), netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4)}, want)
		}
	}
	c.says(t, "status shop/web", 0, "served")
	dial(netlab.Broken)
	const why = "connections reached no endpoint: connection refused"
	c.says(t, "status shop/web", 0, "10.96.0.10:80 lines ClusterIP Cluster 1 the last ", why, "ready yes, connection refused ")
	c.says(t, "status", 0, "unreached connections to Services reach no endpoint: shop/web:lines (tcp, IPv4): connection refused", why)
	c.says(t, "status --failing", 0, "shop/web")
	c.says(t, "explain 10.244.1.11 10.96.0.10:80", 1, why, "the latest connection to 10.244.1.13:8080 failed")
	if n, _ := p.Metric(t, "kubeproxy_relay_unreached_total", "ip_family", "IPv4"); n < 3 {
		t.Errorf("kubeproxy_relay_unreached_total is %v, want 3 at least", n)
	}
	if d := c.diagnose(t); !d.has("proxy-condition") {
		t.Errorf("doctor does not know: %+v", d)
	}
	p.AwaitLog(t, `"Warning: connections to a Service fail`)
	if _, err := c.Host("shopper").Echo("", target); err != nil {
		t.Fatal(err)
	}
	dial(netlab.Answered)
	c.says(t, "status shop/web", 0, "10.96.0.10:80 lines ClusterIP Cluster 1 served", "ready yes it is ready")
	if code, out := c.ask(t, "status"); code != 0 || strings.Contains(out, "unreached") {
		t.Errorf("status: exit %d\n%s", code, out)
	}
}

// TestManifestThatWasNeverReadable starts with a broken file, alone and beside a good one,
// which is served. The state is called healthy only when each was readable once.
func TestManifestThatWasNeverReadable(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.remove(t, "node.yaml")
	c.write(t, "web.yaml", []byte("{"))
	p := c.launch(t)
	is := func(healthz int, synced float64) {
		t.Helper()
		code := p.Status(t, program.HealthAddr, "/healthz")
		if n, found := p.Metric(t, "kubeproxy_source_synced"); code != healthz || n != synced || !found {
			t.Errorf("/healthz %d, kubeproxy_source_synced %v; want %d, %v", code, n, healthz, synced)
		}
	}
	const never = "sources manifests: 1 fault, not yet read in full; what was never read is not served"
	c.says(t, "status", 1, ": not healthy", "nothing was ever programmed", "manifests not synced", never)
	is(503, 0)
	c.write(t, "node.yaml", program.Manifest[any](t, node()))
	c.save(t, app{name: "shop", number: 11}.on(c.webs()...))
	c.says(t, "status", 1, ": not synced, see below", "manifests not synced", never, "shop/shop 80/TCP,80/UDP")
	is(200, 0)
	c.write(t, "web.yaml", app{name: "web", number: 10}.on(c.webs()...).yaml(t))
	c.says(t, "status", 0, ": healthy", "manifests synced", "shop/web")
	is(200, 1)
	c.write(t, "web.yaml", []byte("{"))
	c.says(t, "status", 0, ": healthy", "manifests: 1 fault; what was read before stays in force", "shop/web")
}
