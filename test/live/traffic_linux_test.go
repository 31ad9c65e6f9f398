// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/common/trafficview"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestTraffic checks that the proxy counts the connections that are made, in modes
// nftables and userspace and with each variant of iptables.
func TestTraffic(t *testing.T) {
	t.Run("nftables", func(t *testing.T) {
		t.Parallel()
		countTraffic(t, defaultMode())
	})
	t.Run("userspace", func(t *testing.T) { withUserspace(t, countTraffic) })
}

func TestIPTablesTraffic(t *testing.T) { eachVariant(t, countTraffic) }

func TestIPVSTraffic(t *testing.T) { withIPVS(t, countTraffic) }

// TestTrafficUncounted checks that kube-proxy top says how to have traffic counted.
func TestTrafficUncounted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.start(t)
	if code, out := c.top(t); code != 2 || !strings.Contains(out, "start it with --count-traffic") {
		t.Errorf("exit %d, want 2 and what to do:\n%s", code, out)
	}
}

// top runs kube-proxy top on the node.
func (c *cluster) top(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.Command(kubeProxy.Path, append([]string{"top", "--interval=0"}, args...)...)
	out, err := program.Run(t, c.Node, cmd)
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out
}

// counts are connections by protocol and endpoint, such as "tcp 10.244.1.11:8080". The
// endpoints of a protocol that are gone have no address.
type counts map[string]uint64

func (n counts) sum() (all uint64) {
	for _, x := range n {
		all += x
	}
	return all
}

// carried returns what Service shop/web has carried.
func (c *cluster) carried(t *testing.T) (*trafficview.Answer, counts) {
	t.Helper()
	var a trafficview.Answer
	code, out := c.top(t, "-o=json", "shop/web")
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != 0 {
		t.Fatalf("exit %d, %v:\n%s", code, err, out)
	}
	n := counts{}
	for _, s := range a.Services {
		for _, e := range s.Endpoints {
			n[strings.TrimSpace(e.Protocol+" "+e.Address)] += e.Connections
		}
	}
	return &a, n
}

// connect has hosts connect some times to addresses of a, in both families, and adds the
// connections to made.
func (c *cluster) connect(t *testing.T, made counts, a app, proto string, kinds ...service.Kind) {
	t.Helper()
	for _, h := range []*netlab.Host{c.Host("shopper"), c.Host("customer"), c.Node} {
		for _, k := range kinds {
			if h == c.Host("customer") && k == service.ClusterIP {
				continue // it has no route there
			}
			counted := made
			if c.accelerated && k == service.ClusterIP && proto == "tcp" {
				counted = counts{} // the rules see none of these
			}
			for _, f := range service.Families {
				connectOften(t, counted, h, netlab.Query{Proto: proto, To: a.at(k, f)})
			}
		}
	}
}

func connectOften(t *testing.T, made counts, h *netlab.Host, q netlab.Query) {
	t.Helper()
	for range 5 {
		answer, err := h.Ask(t.Context(), q)
		if err != nil || answer.Outcome != netlab.Answered {
			t.Fatalf("%s over %s from %s: %v, %v", q.To, q.Proto, h.Name, answer.Outcome, err)
		}
		made[q.Proto+" "+answer.At.String()]++
	}
}

// awaitCounts waits until shop/web has carried what was made.
func (c *cluster) awaitCounts(t *testing.T, made counts) *trafficview.Answer {
	t.Helper()
	var a *trafficview.Answer
	var got counts
	if !kit.Soon(func() bool { a, got = c.carried(t); return maps.Equal(made, got) }) {
		t.Fatalf("connections (-made +counted):\n%s", cmp.Diff(made, got))
	}
	return a
}

func countTraffic(t *testing.T, m mode) {
	m.flags = append(slices.Clip(m.flags), "--count-traffic")
	c := newCluster(t, m)
	web, idle := app{name: "web", number: 10, plain: true}.on(c.webs()...), app{name: "idle", number: 11, plain: true}.on(c.webs()...)
	c.save(t, web, idle)
	p := c.launch(t)
	for _, f := range service.Families {
		p.AwaitLog(t, `"Programmed"`, f.String())
	}
	made := counts{}
	c.awaitCounts(t, made)
	c.connect(t, made, web, "tcp", service.ClusterIP, service.NodePort, service.LoadBalancerIP)
	c.connect(t, made, web, "udp", service.ClusterIP)
	a := c.awaitCounts(t, made)
	if in, out := a.Total.BytesIn, a.Total.BytesOut; (in > 0 && out > 0) != a.Counted.Bytes {
		t.Errorf("%d bytes in, %d out, but bytes are counted: %v", in, out, a.Counted.Bytes)
	}
	line := fmt.Sprintf(`kubeproxy_service_connections_total{namespace="shop",service="web"} %d`, made.sum())
	if page := p.Fetch(t, program.MetricsAddr, "/metrics"); page.Status != http.StatusOK || !strings.Contains(string(page.Body), line+"\n") {
		t.Errorf("the metrics lack %s", line)
	}
	c.endpointGoes(t, web, made)
	p.Stop(t)
	p = c.launch(t)
	for _, f := range service.Families {
		p.AwaitLog(t, `"Programmed"`, f.String())
		if c.mode.proxyMode() == "nftables" && !p.Log.Has(`"Programmed"`, f.String(), "changed=false") {
			t.Errorf("a restart changed the table of %s, which holds what is to be", f)
		}
	}
	c.awaitCounts(t, counts{}) // those of the earlier process
}

// endpointGoes takes web-1 away. Its connections stay in the sums.
func (c *cluster) endpointGoes(t *testing.T, web app, made counts) {
	t.Helper()
	c.save(t, web.on(c.webs()[1:]...))
	for k, n := range made {
		if strings.HasSuffix(k, " 10.244.1.11:8080") || strings.HasSuffix(k, " [fd00:10:244:1::11]:8080") {
			delete(made, k)
			proto, _, _ := strings.Cut(k, " ")
			made[proto] += n
		}
	}
	c.awaitCounts(t, made)
	c.connect(t, made, web, "tcp", service.ClusterIP)
	c.awaitCounts(t, made)
	code, out := c.top(t)
	if want := fmt.Sprintf("shop/web  %11d\n", made.sum()); code != 0 || !strings.Contains(out, want) && !strings.Contains(out, fmt.Sprintf("shop/web  %11d  ", made.sum())) {
		t.Errorf("exit %d, want %q in\n%s", code, want, out)
	}
	if strings.Contains(out, "shop/idle") {
		t.Errorf("a Service without traffic is listed:\n%s", out)
	}
}
