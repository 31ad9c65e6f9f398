// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package plandiff

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

func endpoints(addrs ...string) []service.Endpoint {
	var all []service.Endpoint
	for _, a := range addrs {
		all = append(all, service.Endpoint{Addr: netip.MustParseAddrPort(a), Local: strings.HasPrefix(a, "10.244.1.")})
	}
	return all
}

func port(name, ip string, list ...service.Endpoint) *service.Port {
	return &service.Port{
		Name:      service.PortName{Namespace: "shop", Name: name, Port: "http", Protocol: service.TCP},
		Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr(ip), Port: 80}}, Cluster: list,
	}
}

// lines are objects of a line each.
func lines(all ...string) reconcile.Objects {
	var objects reconcile.Objects
	for _, line := range all {
		objects.Add("%s\n", line)
	}
	return objects
}

func compared(from, to *service.Snapshot) *Difference {
	d := New()
	d.Node, d.Mode, d.From, d.To = "node-a", "nftables", "old", "new"
	d.Snapshots(from, to)
	return d
}

func TestSnapshots(t *testing.T) {
	node := &service.Node{Name: "node-a"}
	now := *node
	now.MasqueradeAll = true
	web := port("web", "10.96.0.10", endpoints("10.244.1.2:80", "10.244.2.2:80")...)
	sticky := port("web", "10.96.0.10", endpoints("10.244.1.2:80", "10.244.2.3:80")...)
	sticky.Affinity, sticky.Internal = time.Hour, service.PolicyLocal
	d := compared(service.New(1, node, []*service.Port{web, port("old", "10.96.0.11")}), service.New(2, &now, []*service.Port{sticky, port("new", "10.96.0.12")}))
	var out bytes.Buffer
	kit.Must(t, (View{}).Print(&out, d))
	want := `node node-a, mode nftables: from old to new

settings:
  ~ masquerade all traffic to ClusterIPs: false -> true

Service ports:
  + shop/new:http (tcp, IPv4) is added
      + ClusterIP 10.96.0.12:80
  - shop/old:http (tcp, IPv4) is removed
      - ClusterIP 10.96.0.11:80
  ~ shop/web:http (tcp, IPv4) is changed
      - endpoint 10.244.2.2:80
      + endpoint 10.244.2.3:80
      ~ internal traffic policy: Cluster -> Local
      ~ session affinity: none -> for 1h0m0s

Service ports: 1 added, 1 changed, 1 removed.
`
	if diff := cmp.Diff(want, out.String()); diff != "" || d.ExitCode() != ExitDiffers {
		t.Errorf("exit %d (-want +got):\n%s", d.ExitCode(), diff)
	}
}

func TestNothingDiffers(t *testing.T) {
	s := func() *service.Snapshot {
		return service.New(1, &service.Node{Name: "node-a"}, []*service.Port{port("web", "10.96.0.10", endpoints("10.244.1.2:80")...)})
	}
	d := compared(s(), s())
	err := d.AddObjects(lines("a", "b"), lines("a", "b"))
	kit.Check(t, err == nil && d.Text == "", "%v, %q", err, d.Text)
	d.AddPlan(service.IPv4, nil)
	var out, doc bytes.Buffer
	if err := (View{}).Print(&out, d); err != nil || d.ExitCode() != 0 || !strings.HasSuffix(out.String(), "\nNothing differs.\n") {
		t.Errorf("exit %d, %v: %s", d.ExitCode(), err, out.String())
	}
	kit.Must(t, document.WriteJSON(&doc, d))
	for _, list := range []string{`"settings": []`, `"ports": []`, `"plan": []`, `"affected": []`, `"limits": []`, `"notes": []`} {
		kit.Check(t, strings.Contains(doc.String(), list), "no %s in %s", list, doc.String())
	}
}

// TestAddObjects checks that the diff names both states, is as small as the difference, and is
// one that patch accepts.
func TestAddObjects(t *testing.T) {
	without := func(skip int) reconcile.Objects {
		var all []string
		for i := range 2000 {
			if i != skip {
				all = append(all, strings.Repeat("x", i%7))
			}
		}
		return lines(all...)
	}
	d := New()
	d.From, d.To = "old", "new"
	kit.Must(t, d.AddObjects(without(-1), without(1000)))
	got := d.Text
	kit.Check(t, strings.HasPrefix(got, "--- old\n+++ new\n@@ -") && strings.Count(got, "\n") == 3+7 && strings.Count(got, "\n-") == 1, "got:\n%s", got)
}

// TestHunks checks that each hunk begins where it should, also after one with equal lines
// between its changes.
func TestHunks(t *testing.T) {
	var from, to []string
	for i := range 60 {
		from = append(from, fmt.Sprint(i))
		switch i {
		case 2, 6, 30:
			to = append(to, fmt.Sprint("new ", i))
		case 31: // is removed
		default:
			to = append(to, fmt.Sprint(i))
		}
	}
	to = append(to, "last")
	d := New()
	kit.Must(t, d.AddObjects(lines(from...), lines(to...)))
	var got []string
	for line := range strings.Lines(d.Text) {
		if strings.HasPrefix(line, "@@") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{"@@ -1,10 +1,10 @@", "@@ -28,8 +28,7 @@", "@@ -58,3 +57,4 @@"}
	kit.Check(t, slices.Equal(got, want), "got %q, want %q in\n%s", got, want, d.Text)
}

func TestPlan(t *testing.T) {
	d := New()
	d.AddPlan(service.IPv4, []reconcile.Change{{Text: "+ a"}, {Text: "- b"}})
	var out, doc bytes.Buffer
	if err := (View{}).Print(&out, d); err != nil || !strings.Contains(out.String(), "  + a\n  - b\n\nThe node would make 2 changes.\n") || d.Same {
		t.Errorf("%v: %s", err, out.String())
	}
	var back Difference
	if err := document.WriteJSON(&doc, d); err != nil || json.Unmarshal(doc.Bytes(), &back) != nil || len(back.Plan) != 2 {
		t.Errorf("%v: %s", err, doc.String())
	}
}

// TestAffected checks which Service ports the lines of plans name.
func TestAffected(t *testing.T) {
	d := New()
	of := func(name, port string) service.PortName {
		return service.PortName{Namespace: "shop", Name: name, Port: port, Protocol: service.TCP}
	}
	d.AddPlan(service.IPv4, []reconcile.Change{
		{Text: `+ services: 10.96.0.10 . tcp . 80 comment "shop/web:http" : goto cluster-2`, Port: of("web", "http"), Named: true},
		{Text: "+ endpoints: 10.96.0.11 . tcp . 80 . 0 : 10.244.1.2 . 80", Port: of("cart", "")},
		{Text: "~ shop/dns:dns (tcp): 2 endpoints, 1 of them here", Port: of("dns", "dns"), Named: true},
		{Text: "- listener of shop/old:http (tcp) for policy Cluster", Port: of("old", "http"), Named: true},
		{Text: `- loadbalancer tcp 10.96.0.9:80 # shop/nobody`},
		{Text: "+ filter rule in INPUT: -d 169.254.0.1/32 -j KUBE-PORTALS"},
	})
	old := reconcile.Objects{
		{Text: "# for iptables-restore\n"},
		{Text: "-A KUBE-SERVICES -d 10.96.0.9/32 -j ACCEPT\n-A KUBE-SERVICES -d 10.96.0.8/32 -j ACCEPT\n", Port: of("same", "http")},
	}
	gone := reconcile.Object{Text: "-A KUBE-SERVICES --comment \"shop/nobody:http\" -j KUBE-SVC-A\n", Port: of("gone", "http")}
	come := reconcile.Object{Text: "loadbalancer tcp 10.96.0.7:80\n\t10.244.1.2:80\n", Port: of("come", "http")}
	kit.Must(t, d.AddObjects(append(old, gone), slices.Concat(reconcile.Objects{{Text: "# new\n"}}, old, reconcile.Objects{come})))
	for _, states := range [][2]reconcile.Objects{{nil, {come}}, {{come}, nil}} { // nothing is installed on one side
		other := New()
		err := other.AddObjects(states[0], states[1])
		kit.Check(t, err == nil && slices.Equal(other.Affected, []string{"shop/come:http"}), "%v, %q", err, other.Affected)
	}
	want := []string{"shop/cart", "shop/come:http", "shop/dns:dns", "shop/gone:http", "shop/old:http", "shop/web:http"}
	var out bytes.Buffer
	err := (View{}).Print(&out, d)
	kit.Check(t, err == nil && cmp.Diff(want, d.Affected) == "", "%v, %q", err, d.Affected)
	end := "The node would make 6 changes, for Service ports shop/cart, shop/come:http, shop/dns:dns,\nshop/gone:http, shop/old:http and shop/web:http.\n"
	kit.Check(t, strings.HasSuffix(out.String(), end) && strings.Contains(out.String(), "changes of the node, IPv4:\n"), "%s", out.String())
	d.AddPlan(service.IPv4, []reconcile.Change{{Text: "+ a", Port: of("zoo", "http")}})
	last := d.Plan[len(d.Plan)-1]
	kit.Check(t, last == "+ a # shop/zoo:http", "printed as %q", last)
	got := d.affectedText()
	kit.Check(t, strings.HasSuffix(got, "shop/old:http and 2 others"), "%v", got)
}

// TestLongAndForeign checks that a long list is cut and counted, that nothing from outside
// steers the terminal, and that colours are there only if they are asked for.
func TestLongAndForeign(t *testing.T) {
	d := New()
	d.AddPlan(service.IPv6, slices.Repeat([]reconcile.Change{{Text: "+ \x1b[2J"}}, mostLines+5))
	var short, all, coloured bytes.Buffer
	for v, out := range map[View]*bytes.Buffer{{}: &short, {All: true}: &all, {Colour: true}: &coloured} {
		kit.Must(t, v.Print(out, d))
	}
	if !strings.Contains(short.String(), "and 5 more lines") || strings.Contains(all.String(), "more lines") || strings.Contains(all.String(), "\x1b") {
		t.Errorf("short:\n%s\nall:\n%s", short.String(), all.String())
	}
	c := coloured.String()
	kit.Check(t, strings.Contains(c, "\x1b[32m") && !strings.Contains(c, "\x1b[2J"), "coloured: %q", c)
}

// TestWidth prints the longest names that Kubernetes allows. A unified diff is not
// wrapped, as patch reads it.
func TestWidth(t *testing.T) {
	name := strings.Repeat("service-", 7) + "is-long"
	d := compared(service.New(1, &service.Node{}, nil), service.New(2, &service.Node{}, []*service.Port{port(name, "2001:db8:1111:2222:3333:4444:5555:7777")}))
	d.From, d.To = strings.Repeat("/a/path", 20), "the API server"
	d.AddPlan(service.IPv4, []reconcile.Change{{Text: "+ service-ips: 10.96.0.1 . tcp . 80 comment \"" + strings.Repeat("n", 63) + "/" + name + ":http\" : goto external-1024"}})
	d.Notes = []string{strings.Repeat("a note ", 30)}
	var out bytes.Buffer
	kit.Must(t, (View{}).Print(&out, d))
	kit.CheckWidth(t, out.String(), name, d.From, "goto external-1024")
	t.Logf("\n%s", out.String())
}
