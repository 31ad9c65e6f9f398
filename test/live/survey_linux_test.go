// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// TestDoctorFollows shows that one rule of others that many Services suffer from is one finding,
// that a mistake in objects is one of its own, and that a node which works has none.
func TestDoctorFollows(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.start(t, app{name: "web", number: 10}.on(c.webs()...), app{name: "api", number: 11}.on(c.Host("web-1")), app{name: "db", number: 12}.on(c.Host("web-3")))
	c.awaitSound(t)
	if d := c.diagnose(t); !strings.Contains(d.String(), "Name:packets to Services State:ok Note:to 3 Services from a pod, outside, the node") {
		t.Fatalf("the check of packets: %s", d)
	}

	const table = "table inet corp { chain guard { type filter hook forward priority filter; ct status dnat tcp dport != 22 drop; }; }\n"
	nft(t, c.Node, table)
	d := c.diagnose(t)
	f, found := d.finding("service-traffic")
	kit.Need(t, found && d.Code == 1 && len(d.Findings) == 1, "with a rule that drops: %s", d)
	for _, part := range []string{"chain guard", "drops packets to 3 of 3 Services (shop/api, shop/db, shop/web)", "from a pod, outside"} {
		kit.Check(t, strings.Contains(f.What, part), "%q is not in %q", part, f.What)
	}
	kit.Check(t, strings.Contains(f.Advice, "look: nft -a list chain inet corp guard; ") && f.Fix == "",
		"fix %q, advice %q", f.Fix, f.Advice)
	_, command, _ := strings.Cut(f.Advice, "one connection of them: kube-proxy explain ")
	if code, out := c.ask(t, append([]string{"explain"}, strings.Fields(command)...)...); code != 1 || !strings.Contains(out, "chain guard") {
		t.Errorf("explain %s ends with %d:\n%s", command, code, out)
	}
	nft(t, c.Node, "delete table inet corp\n")
	c.awaitSound(t)

	web := c.Host("web-1")
	nft(t, web, "table inet mute { chain in { type filter hook input priority 0; tcp dport 8080 drop; }; }\n")
	kit.Until(t, "doctor to find that clients wait", func() bool {
		if _, err := program.Run(t, c.Host("shopper"), exec.Command("bash", "-c", "(for i in $(seq 60); do timeout 4 bash -c 'exec 3<>/dev/tcp/10.96.0.11/80' & sleep 0.1; done; wait) >/dev/null 2>&1 &")); err != nil {
			t.Fatal(err)
		}
		d = c.diagnose(t)
		return d.has("unanswered")
	})
	if f, _ := d.finding("unanswered"); !strings.Contains(f.What, " to shop/api") || !strings.Contains(f.Advice, c.Host("shopper").IPv4.String()+" 10.96.0.11:80 --probe") {
		t.Errorf("%q, %q", f.What, f.Advice)
	}
	nft(t, web, "delete table inet mute\n")
	c.shell(t, "conntrack -F 2>/dev/null")
	c.awaitSound(t)

	c.write(t, "wrong.yaml", []byte(`{apiVersion: v1, kind: Service, metadata: {name: wrong, namespace: shop}, spec: {clusterIP: 10.96.9.9, ports: [{name: web, port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: wrong-4, namespace: shop, labels: {kubernetes.io/service-name: wrong}}, addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [{addresses: [10.244.1.11]}]}
`))
	kit.Until(t, "doctor to find the port", func() bool { d = c.diagnose(t); return d.has("port-mismatch") })
	if f, _ := d.finding("port-mismatch"); f.What != "service shop/wrong: endpointslice wrong-4 ports: its ready endpoints are on port http/TCP, none named web/TCP" || d.Code != 1 {
		t.Errorf("%q, exit code %d", f.What, d.Code)
	}
}
