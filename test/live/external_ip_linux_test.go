// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// conflictingService has ports of node-a's address that a program, a NodePort and a
// health check use, an unused one, and another port of a ClusterIP.
const conflictingService = `apiVersion: v1
kind: Service
metadata: {name: thief, namespace: evil}
spec:
  clusterIP: 10.96.0.66
  externalIPs: [192.0.2.10, 10.96.0.10]
  ports:
  - {name: a, port: 22, targetPort: 8080}
  - {name: b, port: 30010, targetPort: 8080}
  - {name: c, port: 30090, targetPort: 8080}
  - {name: d, port: 8443, targetPort: 8080}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: thief-1, namespace: evil, labels: {kubernetes.io/service-name: thief}}
addressType: IPv4
ports: [{name: a, port: 8080}, {name: b, port: 8080}, {name: c, port: 8080}, {name: d, port: 8080}]
endpoints: [{addresses: [WEB-2], nodeName: node-a}]
---
apiVersion: v1
kind: Service
metadata: {name: victim, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.67
  externalTrafficPolicy: Local
  healthCheckNodePort: 30090
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: victim-1, namespace: shop, labels: {kubernetes.io/service-name: victim}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [WEB-1], nodeName: node-a}]
`

// TestExternalIPOfTheNode checks that an external IP that belongs to the node or to
// another Service takes no port from either, and is served on unused ports.
func TestExternalIPOfTheNode(t *testing.T) {
	t.Run("nftables", func(t *testing.T) { checkConflictingService(t, defaultMode()) })
	t.Run("iptables", func(t *testing.T) { eachVariant(t, checkConflictingService) })
}

func checkConflictingService(t *testing.T, m mode) {
	c := newCluster(t, m)
	if _, err := c.Node.Echo("", 22); err != nil {
		t.Fatal(err)
	}
	c.save(t, app{name: "web", number: 10, plain: true}.on(c.Host("web-1")))
	p := c.start(t)
	like := netip.MustParseAddr("10.0.0.1")
	text := strings.NewReplacer("WEB-1", c.Host("web-1").Addr(like).String(), "WEB-2", c.Host("web-2").Addr(like).String()).Replace(conflictingService)
	c.write(t, "thief.yaml", []byte(text))
	asked := func(from *netlab.Host, at string) netlab.Answer {
		got, err := from.Ask(t.Context(), netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort(at)})
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		return got
	}
	customer := c.Host("customer")
	kit.Until(t, "a port that nobody has to lead to the Service", func() bool { return asked(customer, "192.0.2.10:8443").Backend == c.Host("web-2").Name })
	for at, want := range map[string]*netlab.Host{"192.0.2.10:22": c.Node, "192.0.2.10:30010": c.Host("web-1")} {
		for range 5 {
			if got := asked(customer, at); got.Outcome != netlab.Answered || got.Backend != want.Name {
				t.Errorf("%s: %s by %q, want %s", at, got.Outcome, got.Backend, want.Name)
			}
		}
	}
	if got := asked(c.Host("shopper"), "10.96.0.10:22"); got.Outcome != netlab.Refused {
		t.Errorf("another port of a ClusterIP: %s by %q, want it refused", got.Outcome, got.Backend)
	}
	kit.Until(t, "the health check to be answered for its Service", func() bool { return healthCheckOwner(customer, "http://192.0.2.10:30090/") == "victim" })
	p.AwaitLog(t, "192.0.2.10:22/tcp is refused", "a program of the node listens")
	p.AwaitLog(t, "192.0.2.10:30010/tcp is refused", "NodePort or healthCheckNodePort of service shop/web")
	p.AwaitLog(t, "10.96.0.10:22/tcp is refused", "the ClusterIP of service shop/web")
}

// healthCheckOwner returns the Service in the response of a health check, empty without a
// response.
func healthCheckOwner(from *netlab.Host, url string) string {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return from.Dial(ctx, network, addr)
		},
	}}
	resp, err := client.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var answer struct{ Service struct{ Name string } }
	if json.NewDecoder(resp.Body).Decode(&answer) != nil {
		return ""
	}
	return answer.Service.Name
}
