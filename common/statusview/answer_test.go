// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata")

// noon is the time of the requests in the tests.
var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return noon.Add(-d) }

// shopPort returns a port of a Service in family f.
func shopPort(f service.Family, name string, endpoints int, fronts ...service.Frontend) *service.Port {
	p := &service.Port{Family: f, Frontends: fronts}
	p.Name = service.PortName{Namespace: "shop", Name: name, Port: "http", Protocol: service.TCP}
	for i := range endpoints {
		addr := netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 1)})
		if f == service.IPv6 {
			addr = netip.AddrFrom16([16]byte{0xfd, 0, 15: byte(i + 1)})
		}
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.AddrPortFrom(addr, 8080), Local: i == 0})
	}
	return p
}

func front(k service.Kind, addr string, port uint16) service.Frontend {
	f := service.Frontend{Kind: k, Port: port}
	if addr != "" {
		f.Addr = netip.MustParseAddr(addr)
	}
	return f
}

// populatedStore returns a Store that contains a case of each kind.
func populatedStore() *servicestate.Store {
	var want *service.Snapshot
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	lb := shopPort(service.IPv4, "a-rather-long-name-of-a-service", 3,
		front(service.ClusterIP, "10.96.0.1", 80), front(service.NodePort, "", 30080),
		front(service.LoadBalancerIP, "203.0.113.7", 80), front(service.ExternalIP, "198.51.100.9", 80))
	lb.External, lb.Local, lb.HealthCheck, lb.LocalReady = service.PolicyLocal, nil, 31000, 1
	lb6 := shopPort(service.IPv6, "a-rather-long-name-of-a-service", 1, front(service.ClusterIP, "fd00:10:96::abcd:1", 80))
	empty := shopPort(service.IPv4, "empty", 0, front(service.ClusterIP, "10.96.0.2", 443))
	broken := shopPort(service.IPv4, "broken", 2, front(service.ClusterIP, "10.96.0.3", 80))
	late := shopPort(service.IPv4, "late", 1, front(service.ClusterIP, "10.96.0.4", 80))
	round := func(f service.Family, generation uint64, before time.Duration, err error, ports ...*service.Port) {
		want = service.New(generation, &service.Node{NodePorts: service.AnyAddress()}, ports)
		b.Result(f, reconcile.Result{Snapshot: want, Generation: generation, Start: ago(before), Outcome: reconcile.Outcome{Err: err}})
	}
	refused := &reconcile.PortError{Name: broken.Name, Err: errors.New("add element:\nno buffer space\x1b[31m available")}
	round(service.IPv4, 6, 50*time.Hour, nil, lb, lb6)
	round(service.IPv4, 7, 90*time.Second, refused, lb, lb6, empty, broken)
	round(service.IPv6, 7, 90*time.Second, nil, lb, lb6, empty, broken)
	want = service.New(8, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{lb, lb6, empty, broken, late})
	skipped := track.Problem{Service: types.NamespacedName{Namespace: "shop", Name: "odd"}, Field: "spec.clusterIPs[0]", Message: "127.0.0.1 is a loopback address"}
	part := track.Problem{Service: types.NamespacedName{Namespace: "shop", Name: "empty"}, Field: "spec.externalIPs[1]", Message: "belongs to service shop/other, which was there first"}
	b.Problems = func() []track.Problem { return []track.Problem{skipped, part} }
	b.Unanswered = func() []track.Problem {
		return []track.Problem{{Service: types.NamespacedName{Namespace: "shop", Name: lb.Name.Name}, Message: "listen tcp4 192.0.2.1:31000: bind: address already in use"}}
	}
	b.ProblemFound(skipped, ago(3*time.Minute))
	b.ProblemFound(part, ago(90*time.Second))
	return b
}

// failingReport returns a report with content in each of its parts.
func failingReport() health.Report {
	pending, contact := ago(45*time.Second), ago(6*time.Minute)
	return health.Report{
		CurrentTime: noon, NodeEligible: new(false), NodeReason: "the Node object was deleted",
		Status: map[string]health.FamilyReport{
			"IPv4": {LastUpdated: ago(90 * time.Second), Generation: 7, OldestPending: &pending, FailedPorts: 1, DriftFound: 3, DriftRepaired: 2, LastError: "service port shop/broken: no\nbuffer", Reason: "a change waits to be programmed for 45s, more than 40s"},
			"IPv6": {LastUpdated: ago(1 * time.Second), Healthy: true, Generation: 8},
		},
		Sources: []health.SourceReport{
			{Name: "services", Synced: true, LastContact: &contact, Stale: true, Error: "watch services at the API server: connection refused", Faults: 3},
			{Name: "nodes", Error: `watch nodes at the API server: Get "https://192.0.2.9:6443/api/v1/nodes?fieldSelector=metadata.name%3Dnode-a&watch=true": dial tcp 192.0.2.9:6443: connect: connection refused`},
		},
		Conditions: map[string]string{"server-health": "listen tcp 0.0.0.0:10256: bind: address already in use"},
	}
}

// serveStore serves b as the proxy does and returns the address.
func serveStore(t *testing.T, b *servicestate.Store, r health.Report) string {
	t.Helper()
	about := servicestate.ProxyInfo{Mode: "nftables", Node: "node-a", Version: "v1.0.0", Started: ago(50 * time.Hour), Health: r}
	if !r.Healthy {
		about.Silent = []servicestate.SilentEndpoint{
			{PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "broken", Protocol: "tcp", Address: "10.244.1.7:8080"}, LeftOut: true, Since: ago(75 * time.Second), Why: "3 dials of this node got no answer, and others did"},
			{PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "late", Port: "http", Protocol: "tcp", Address: "10.244.1.8:8080"}, Since: ago(8 * time.Second), Why: "5 connections got no\nanswer, and others did"},
		}
		about.Ended = []servicestate.EndedConnections{
			{PortEndpoint: servicestate.PortEndpoint{Address: "10.244.1.9:8080"}, Connections: 1, Since: ago(time.Hour), Last: ago(9 * time.Minute), Why: "it does not\nanswer"},
			{PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "late", Port: "http", Address: "10.244.1.10:8080"}, Connections: 130, Since: ago(75 * time.Second), Last: ago(8 * time.Second), Why: "the Service asks for it"},
		}
	}
	admin := health.Admin{Mode: "nftables", Services: b.Handler(func() servicestate.ProxyInfo { return about })}
	s := httptest.NewServer(admin.Handler())
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

type outcome struct {
	code     int
	out, err string
}

// ask asks server and prints the answer, as kube-proxy status does at noon with the
// arguments NAMESPACE/NAME, NAME, --failing, -n=NAMESPACE, -o=FORMAT and
// --timeout=DURATION.
func ask(t *testing.T, server string, args ...string) outcome {
	t.Helper()
	q, v, timeout := Query{Server: server}, View{Format: Table, Now: noon}, 10*time.Second
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--failing":
			q.Failing = true
		case "-n":
			q.Namespace = value
		case "-o":
			v.Format = Format(value)
		case "--timeout":
			timeout, _ = time.ParseDuration(value)
		default:
			if namespace, name, both := strings.Cut(arg, "/"); both {
				q.Namespace, q.Name = namespace, name
			} else {
				q.Name = arg
			}
		}
	}
	v.Full = q.Name != ""
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	a, err := q.Ask(ctx)
	if err != nil {
		return outcome{ExitCode(nil, err), "", err.Error()}
	}
	var out bytes.Buffer
	kit.Must(t, v.Print(&out, a))
	return outcome{ExitCode(a, nil), out.String(), ""}
}

// TestGoldens compares the output with files of the archive. Each file is named by
// the arguments.
func TestGoldens(t *testing.T) {
	const path = "testdata/goldens.txtar"
	golden, err := txtar.ParseFile(path)
	kit.Must(t, err)
	server := serveStore(t, populatedStore(), failingReport())
	for i, f := range golden.Files {
		got := ask(t, server, strings.Fields(f.Name)[1:]...)
		text := fmt.Sprintf("%s%s[exit %d]\n", got.out, got.err, got.code)
		text = strings.ReplaceAll(text, server, "SERVER")
		if *update {
			golden.Files[i].Data = []byte(text)
			continue
		}
		kit.Same(t, fmt.Sprintf("%s (-want +got)", f.Name), string(f.Data), text)
	}
	if *update {
		kit.Must(t, os.WriteFile(path, txtar.Format(golden), 0o600))
	}
}

func TestAHealthyProxy(t *testing.T) {
	var want *service.Snapshot
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	shut := shopPort(service.IPv4, "shut", 1, front(service.ClusterIP, "10.96.0.3", 80))
	shut.Frontends[0].Sources = []netip.Prefix{}
	want = service.New(3, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{
		shut,
		shopPort(service.IPv4, "web", 1, front(service.ClusterIP, "10.96.0.1", 80)),
		shopPort(service.IPv4, "empty", 0, front(service.ClusterIP, "10.96.0.2", 80)),
	})
	b.Result(service.IPv4, reconcile.Result{Snapshot: want, Generation: 3, Start: ago(time.Hour)})
	r := health.Report{Healthy: true, Status: map[string]health.FamilyReport{"IPv4": {Healthy: true, LastUpdated: ago(time.Second), Generation: 3}}}
	server := serveStore(t, b, r)
	for args, wants := range map[string][]string{
		"":              {": healthy\n", "3 Services: 2 with a port that serves no client\n", "shop/web "},
		"--failing":     {"; 2 listed\n", "shop/empty ", "no client is allowed by the source ranges", "no endpoints"},
		"shop/web":      {"shop/web: programmed\n", "10.96.0.1:80"},
		"web":           {"shop/web: programmed\n"},
		"-n=shop web":   {"shop/web: programmed\n"},
		"-n=other":      {"No Services\n"},
		"shop/empty":    {"shop/empty: programmed\n", "no endpoints"},
		"web -o=json":   {`"ok": true`, `"notProgrammed": 0`},
		"-n=shop":       {"3 Services"},
		"web --failing": {"1 Service: all programmed; 0 listed\n"},
	} {
		got := ask(t, server, strings.Fields(args)...)
		kit.Check(t, got.code == 0 && got.err == "", "%q: exit %d, %s", args, got.code, got.err)
		for _, w := range wants {
			kit.Check(t, strings.Contains(got.out, w), "%q: no %q in\n%s", args, w, got.out)
		}
	}
}

// TestAFailingProxy checks that a failed round is reported at once, although a
// proxy is unhealthy only when failures go on.
func TestAFailingProxy(t *testing.T) {
	want := service.New(3, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{shopPort(service.IPv4, "web", 1, front(service.ClusterIP, "10.96.0.1", 80))})
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	b.Result(service.IPv4, reconcile.Result{Snapshot: want, Generation: 3, Start: ago(time.Hour)})
	r := health.Report{Healthy: true, Status: map[string]health.FamilyReport{
		"IPv4": {Healthy: true, Failing: true, LastUpdated: ago(time.Minute), Generation: 3, LastError: "plan: no answer"},
	}}
	server := serveStore(t, b, r)
	got := ask(t, server)
	if got.code != 1 || !strings.Contains(got.out, ": failing\n") || !strings.Contains(got.out, "plan: no answer") {
		t.Errorf("exit %d and\n%s", got.code, got.out)
	}
	if got := ask(t, server, "shop/web"); got.code != 0 {
		t.Errorf("about a Service that is in force: exit %d and\n%s", got.code, got.out)
	}
}

// TestUnsynced asks a proxy that could never read one of its manifests.
func TestUnsynced(t *testing.T) {
	r := health.Report{Healthy: true, Status: map[string]health.FamilyReport{"IPv4": {Healthy: true}}, Sources: []health.SourceReport{{Name: "manifests", Error: "broken", Faults: 1}}}
	b := &servicestate.Store{Latest: func() *service.Snapshot { return service.New(1, &service.Node{}, nil) }}
	if got := ask(t, serveStore(t, b, r)); got.code != 1 || !strings.Contains(got.out, ": not synced, see below\n") {
		t.Errorf("exit %d and\n%s", got.code, got.out)
	}
	r.Sources = []health.SourceReport{{Name: "services", Error: "watch services: refused", Faults: 1}, {Name: "nodes", Error: "watch nodes: refused", Faults: 1}, {Name: "servicecidrs", Error: "forbidden", Faults: 1}}
	if got := ask(t, serveStore(t, b, r)); !strings.Contains(got.out, "watch services: refused\n") || !strings.Contains(got.out, "nodes         not synced  as above\n") || !strings.Contains(got.out, "forbidden\n") {
		t.Errorf("one cause of two faults, and another:\n%s", got.out)
	}
}

// The answer about a Service is not OK if the kernel does not forward its family. That of
// a Service of another family is OK.
func TestABlockedFamily(t *testing.T) {
	want := service.New(3, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{
		shopPort(service.IPv4, "four", 1, front(service.ClusterIP, "10.96.0.1", 80)),
		shopPort(service.IPv6, "six", 1, front(service.ClusterIP, "fd00:10:96::1", 80)),
	})
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	for _, f := range service.Families {
		b.Result(f, reconcile.Result{Snapshot: want, Generation: 3, Start: ago(time.Hour)})
	}
	const name = "setting-net.ipv4.ip_forward"
	r := health.Report{
		Healthy: true, Status: map[string]health.FamilyReport{"IPv4": {Healthy: true}, "IPv6": {Healthy: true}},
		Conditions: map[string]string{name: "is 0"}, Blocked: []string{name}, BlockedFamilies: []string{"IPv4"},
	}
	server := serveStore(t, b, r)
	for args, tt := range map[string]struct {
		code int
		says string
	}{
		"":          {1, "not healthy, as traffic is blocked by " + name},
		"shop/four": {1, "is not healthy, as traffic is blocked by " + name},
		"shop/six":  {0, "shop/six: programmed"},
	} {
		got := ask(t, server, strings.Fields(args)...)
		kit.Check(t, got.code == tt.code && strings.Contains(strings.Join(strings.Fields(got.out), " "), tt.says),
			"%q: exit %d, want %d and %q\n%s%s", args, got.code, tt.code, tt.says, got.out, got.err)
	}
}

// The document's form is a promise.
func TestJSON(t *testing.T) {
	server := serveStore(t, populatedStore(), failingReport())
	got := ask(t, server, "-o=json", "--failing")
	var d map[string]any
	kit.Must(t, json.Unmarshal([]byte(got.out), &d))
	for _, key := range []string{"server", "ok", "summary", "mode", "node", "version", "started", "generation", "health", "services"} {
		kit.Check(t, d[key] != nil, "no %q in\n%s", key, got.out)
	}
	if got.code != 1 || d["ok"] != false || strings.Contains(got.out, "\x1b") {
		t.Errorf("exit %d, ok %v", got.code, d["ok"])
	}
}

// TestMany prints 10,000 Services, or the one that fails.
func TestMany(t *testing.T) {
	t.Parallel()
	const many = 10000
	var ports []*service.Port
	for i := range many {
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
		ports = append(ports, shopPort(service.IPv4, fmt.Sprintf("s%05d", i), 3, front(service.ClusterIP, ip, 80)))
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	b.Result(service.IPv4, reconcile.Result{Snapshot: want, Generation: 1, Start: ago(time.Hour), Outcome: reconcile.Outcome{Err: &reconcile.PortError{Name: ports[77].Name, Err: errors.New("refused")}}})
	server := serveStore(t, b, failingReport())
	begin := time.Now()
	all := ask(t, server)
	t.Logf("%d Services, %d bytes in %s", many, len(all.out), time.Since(begin))
	n := strings.Count(all.out, "\nshop/s")
	kit.Check(t, n == many && all.code == 1, "exit %d, %d Services, want %d", all.code, n, many)
	if got := ask(t, server, "--failing"); strings.Count(got.out, "\nshop/s") != 1 || !strings.Contains(got.out, "shop/s00077") {
		t.Errorf("--failing:\n%s", got.out)
	}
}

// TestLimits checks that status names the address that cannot be served and other
// deviations, and shows the rest as programmed.
func TestLimits(t *testing.T) {
	web := shopPort(service.IPv4, "web", 1, front(service.ClusterIP, "10.96.0.1", 80), front(service.LoadBalancerIP, "203.0.113.5", 80))
	want := service.New(3, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{web})
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	r := reconcile.Result{Snapshot: want, Generation: 3, Start: ago(time.Hour), Outcome: reconcile.Outcome{Notes: reconcile.Notes{web.Name: {{Text: "no timeout"}}}}}
	r.Err = &reconcile.PortError{Name: web.Name, Err: &reconcile.UnsupportedError{Text: "no source ranges", Affected: web.Frontends[1:]}}
	b.Result(service.IPv4, r)
	report := health.Report{Healthy: true, Status: map[string]health.FamilyReport{"IPv4": {Healthy: true, LastUpdated: ago(time.Second), Generation: 3}}}
	got := ask(t, serveStore(t, b, report), "shop/web")
	wants := []string{"shop/web: limited\n", "no source ranges\n", "served\n", "not served: this mode cannot\n", "IPv4    no timeout\n"}
	for _, w := range wants {
		kit.Check(t, strings.Contains(got.out, w), "no %q in\n%s", w, got.out)
	}
	kit.Check(t, got.code == ExitNotOK, "exit %d, want %d", got.code, ExitNotOK)
}

// A question about one Service lists its endpoints, and why each one is used or not.
func TestEndpointsOfAService(t *testing.T) {
	want := service.New(3, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{
		shopPort(service.IPv4, "web", 1, front(service.ClusterIP, "10.96.0.1", 80)),
	})
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	b.Endpoints = func(f service.Family, n service.PortName) track.Choice {
		if f != service.IPv4 || n.Name != "web" || n.Port != "http" || n.Protocol != service.TCP {
			return track.Choice{}
		}
		return track.Choice{Candidates: []track.Candidate{
			{Listed: track.Listed{Address: "10.244.1.1:8080", Node: "node-a", Zone: "east", Local: true, State: "ready"}, Cluster: track.Use{Used: true, Why: "it is ready"}, ForLocal: &track.Use{Used: true, Why: "it is ready"}},
			{Listed: track.Listed{Address: "10.244.2.1:8080", Node: "node-b\x1b", State: "ready"}, Cluster: track.Use{Used: true, Why: "it is ready"}, ForLocal: &track.Use{Why: "it is not on this node"}},
		}}
	}
	b.Result(service.IPv4, reconcile.Result{Snapshot: want, Generation: 3, Start: ago(time.Hour)})
	server := serveStore(t, b, health.Report{Healthy: true, Status: map[string]health.FamilyReport{"IPv4": {Healthy: true}}})
	got := ask(t, server, "shop/web")
	kit.Need(t, got.code == 0, "exit %d: %s", got.code, got.err)
	for _, line := range []string{
		"  PORT  ENDPOINT         NODE           ZONE  STATE  USED  LOCAL  WHY\n",
		"  http  10.244.1.1:8080  node-a (here)  east  ready  yes   yes    it is ready\n",
		"  http  10.244.2.1:8080  node-b\\x1b           ready  yes   no     it is not on this node\n",
	} {
		kit.Check(t, strings.Contains(got.out, line), "no line %q in\n%s", line, got.out)
	}
	if got := ask(t, server); strings.Contains(got.out, "10.244.1.1:8080") {
		t.Errorf("the list of all Services has endpoints:\n%s", got.out)
	}
}

// TestWidth prints the longest names that Kubernetes allows. Lines fit, and names are whole.
func TestWidth(t *testing.T) {
	name, node, zone := strings.Repeat("service-", 7)+"is-long", strings.Repeat("node-of-a-", 6)+"long.name.example.org", strings.Repeat("zone", 15)
	at := ago(time.Hour)
	s := servicestate.Service{
		Namespace: strings.Repeat("n", 63), Name: name, State: servicestate.Limited,
		Problems:    []servicestate.FieldError{{Field: "spec.loadBalancerSourceRanges[1]", Message: strings.Repeat("a reason ", 20), Since: at}},
		HealthCheck: &servicestate.HealthCheck{Port: 31000, Error: strings.Repeat("no answer ", 20)},
	}
	for _, family := range []string{"IPv4", "IPv6"} {
		s.Ports = append(s.Ports, servicestate.Port{
			Port: "port-fifteen-ch", Protocol: "sctp", Family: family, State: servicestate.Limited, Since: &at, Generation: 123456, Endpoints: 12345,
			LocalEndpoints: 1234, Error: strings.Repeat("the kernel refuses ", 9), Notes: []string{strings.Repeat("a note ", 30)},
			Frontends: []servicestate.Frontend{
				{Kind: "LoadBalancerIP", Address: "2001:db8:1111:2222:3333:4444:5555:6666", Port: 65535, Endpoints: 12345, Policy: "Cluster", Reason: servicestate.NoSources},
				{Kind: "NodePort", Port: 32767, Policy: "Local"},
			},
			EndpointList: []track.Candidate{{
				Listed:  track.Listed{Address: "[2001:db8:1111:2222:3333:4444:5555:7777]:65535", Node: node, Zone: zone, State: "terminating"},
				Cluster: track.Use{Why: "another endpoint is ready, and this one is not"}, ForLocal: &track.Use{Used: true, Why: "why"},
			}},
		})
	}
	r := failingReport()
	r.NodeReason, r.Blocked = strings.Repeat("gone and ", 20), []string{strings.Repeat("a-condition-", 10)}
	r.Healthy = true
	r.Conditions[r.Blocked[0]] = strings.Repeat("is wrong ", 20)
	a := &Answer{Response: servicestate.Response{ProxyInfo: servicestate.ProxyInfo{Mode: "nftables", Node: node, Version: "v1.0.0-alpha.1+0123456789abcdef", Started: at, Health: r}}}
	a.Services = []servicestate.Service{s}
	a.Summary.add(&s)
	for range mostSilent + 1 {
		a.Silent = append(a.Silent, servicestate.SilentEndpoint{
			PortEndpoint: servicestate.PortEndpoint{Namespace: s.Namespace, Name: name, Port: "port-fifteen-ch", Address: "[2001:db8:1111:2222:3333:4444:5555:7777]:65535"}, LeftOut: true, Since: at,
			Why: strings.Repeat("no answer ", 9),
		})
		a.Ended = append(a.Ended, servicestate.EndedConnections{
			PortEndpoint: servicestate.PortEndpoint{Namespace: s.Namespace, Name: name, Port: "port-fifteen-ch", Address: "[2001:db8:1111:2222:3333:4444:5555:7777]:65535"}, Connections: 65536, Since: at, Last: at,
			Why: strings.Repeat("no answer ", 9),
		})
	}
	for full, names := range map[bool][]string{true: {name, zone, node, "2001:db8:1111:2222:3333:4444:5555:7777"}, false: {name, node, r.Blocked[0]}} {
		var out bytes.Buffer
		kit.Must(t, (&View{Format: Table, Full: full, Now: noon}).Print(&out, a))
		kit.CheckWidth(t, out.String(), names...)
		t.Logf("\n%s", out.String())
	}
	var out bytes.Buffer
	b := *a
	b.Services = nil
	b.Health = health.Report{}
	x := &Watch{Query: &Query{}, View: View{Format: Table, Now: noon}}
	kit.Must(t, x.write(&out, a, changes(&b, a, "gone")))
	kit.CheckWidth(t, out.String(), name)
}

// closedAddr returns an address without a listener. Only this process uses it, so it
// stays closed.
func closedAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.77.%d.%d:0", byte(os.Getpid()>>8), byte(os.Getpid())))
	kit.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// cannedServer accepts connections and writes text, or with an empty text waits until the
// client closes.
func cannedServer(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	t.Cleanup(func() { l.Close() })
	go netlab.Serve(l, func(c net.Conn) {
		if text == "" {
			_, _ = io.Copy(io.Discard, c)
			return
		}
		_, _ = c.Read(make([]byte, 1<<12))
		_, _ = c.Write([]byte(text))
	})
	return l.Addr().String()
}

// truncatedResponse promises more bytes than it writes, so the server closes the
// connection.
func truncatedResponse(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "10")
	_, _ = w.Write([]byte("x"))
}

// TestHTTPS checks that a proxy that serves by HTTPS is asked that way, on loopback
// without regard to who signed its certificate.
func TestHTTPS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	got := ask(t, s.Listener.Addr().String())
	kit.Check(t, strings.Contains(got.err, "answers something else"), "%+v, want the answer of HTTPS", got)
}

// handle serves f at the address it returns.
func handle(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestNoAnswer asks servers that cannot answer.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	monitor := health.New(health.Options{Families: []service.Family{service.IPv4}})
	known := serveStore(t, populatedStore(), failingReport())
	for name, tt := range map[string]struct {
		server string
		args   []string
		code   int
		want   string
	}{
		"not running":        {closedAddr(t), nil, ExitUnreachable, "is the proxy running on this node?"},
		"hangs":              {cannedServer(t, ""), []string{"--timeout=3s"}, ExitUnreachable, "accepts connections but does not answer in time"},
		"no HTTP":            {cannedServer(t, "SSH-2.0-x\r\n\r\n"), nil, ExitUnreachable, "does not speak HTTP"},
		"breaks off":         {handle(t, truncatedResponse), nil, ExitUnreachable, "the connection broke"},
		"unknown host":       {"no-such-host.invalid:1", nil, ExitUnreachable, "want the name or address of the node in --server"},
		"the health server":  {handle(t, monitor.Handler(health.Observer{}).ServeHTTP), nil, ExitUnreachable, "is the health server of a kube-proxy"},
		"another kube-proxy": {handle(t, health.Admin{Mode: "iptables"}.Handler().ServeHTTP), nil, ExitUnreachable, "a kube-proxy in mode iptables answers"},
		"a web server":       {handle(t, http.NotFound), nil, ExitUnreachable, "is not this proxy (HTTP status 404)"},
		"for its node only": {handle(t, func(w http.ResponseWriter, q *http.Request) {
			q.RemoteAddr = "192.0.2.1:40000"
			health.Admin{Services: http.NotFoundHandler()}.Handler().ServeHTTP(w, q)
		}), nil, ExitUnreachable, "to its own node only"},
		"knows no status": {handle(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) }), nil, ExitUnreachable, "answers something else"},
		"login wanted":    {handle(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }), nil, ExitUnreachable, "(HTTP status 401)"},
		"no such Service": {known, []string{"shop/none"}, ExitUnknown, "service shop/none is not known here"},
		"no such name":    {known, []string{"none"}, ExitUnknown, "no Service named none is known to the proxy in any namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ask(t, tt.server, tt.args...)
			if got.code != tt.code || got.out != "" || !strings.Contains(got.err, tt.want) || strings.Contains(got.err, "\n") {
				t.Errorf("%+v, want exit %d and %q", got, tt.code, tt.want)
			}
		})
	}
}

// TestRedirects asks a program that sends its clients elsewhere, which nobody follows.
func TestRedirects(t *testing.T) {
	followed := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
	defer elsewhere.Close()
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL+"/secret", http.StatusFound))
	defer server.Close()
	q := Query{Server: server.Listener.Addr().String()}
	_, askErr := q.Ask(t.Context())
	_, pageErr := q.Page(t.Context(), "/metrics")
	_, _, fetchErr := q.Fetch(t.Context(), "/explain")
	for _, err := range []error{askErr, pageErr, fetchErr} {
		kit.Check(t, err != nil && !followed && strings.Contains(err.Error(), "302"), "%v, followed: %t", err, followed)
	}
}
