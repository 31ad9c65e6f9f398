// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata")

// noon is the time of the requests in the tests of status.
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
		b.Result(f, want, reconcile.Result{Generation: generation, Start: ago(before), Err: err})
	}
	refused := &reconcile.PortError{Name: broken.Name, Err: errors.New("add element:\nno buffer space\x1b[31m available")}
	round(service.IPv4, 6, 50*time.Hour, nil, lb, lb6)
	round(service.IPv4, 7, 90*time.Second, refused, lb, lb6, empty, broken)
	round(service.IPv6, 7, 90*time.Second, nil, lb, lb6, empty, broken)
	want = service.New(8, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{lb, lb6, empty, broken, late})
	skipped := servicestate.Problem{Namespace: "shop", Name: "odd", Field: "spec.clusterIPs[0]", Message: "127.0.0.1 is a loopback address"}
	part := servicestate.Problem{Namespace: "shop", Name: "empty", Field: "spec.externalIPs[1]", Message: "belongs to service shop/other, which was there first"}
	b.Problems = func() []servicestate.Problem { return []servicestate.Problem{skipped, part} }
	b.Unanswered = func() []servicestate.Problem {
		return []servicestate.Problem{{Namespace: "shop", Name: lb.Name.Name, Message: "listen tcp4 192.0.2.1:31000: bind: address already in use"}}
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
	admin := health.Admin{Mode: "nftables", Services: b.Handler(func() servicestate.ProxyInfo { return about })}
	s := httptest.NewServer(admin.Handler())
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// runStatus runs a command line of status at noon.
func runStatus(t *testing.T, args ...string) outcome {
	t.Helper()
	var out, err bytes.Buffer
	q := &statusOptions{now: func() time.Time { return noon }}
	cmd := statusCommand(q, streams{&out, &err})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args)
	code := exitCode(cmd.ExecuteContext(t.Context()), &err)
	// A busy machine may delay the response, which prints this line.
	errText := regexp.MustCompile(`(?m)^kube-proxy: still asking .*\n`).ReplaceAllString(err.String(), "")
	return outcome{code, out.String(), errText}
}

// TestStatusGoldens compares the output with files of the archive. Each file is named by
// the arguments.
func TestStatusGoldens(t *testing.T) {
	const path = "testdata/status.txtar"
	golden, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	server := serveStore(t, populatedStore(), failingReport())
	for i, f := range golden.Files {
		got := runStatus(t, append(strings.Fields(f.Name)[1:], "--server="+server)...)
		text := fmt.Sprintf("%s%s[exit %d]\n", got.Out, got.Err, got.Code)
		text = strings.ReplaceAll(text, server, "SERVER")
		if *update {
			golden.Files[i].Data = []byte(text)
			continue
		}
		if diff := cmp.Diff(string(f.Data), text); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f.Name, diff)
		}
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(golden), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStatusOfAHealthyProxy(t *testing.T) {
	var want *service.Snapshot
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	shut := shopPort(service.IPv4, "shut", 1, front(service.ClusterIP, "10.96.0.3", 80))
	shut.Frontends[0].Sources = []netip.Prefix{}
	want = service.New(3, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{
		shut,
		shopPort(service.IPv4, "web", 1, front(service.ClusterIP, "10.96.0.1", 80)),
		shopPort(service.IPv4, "empty", 0, front(service.ClusterIP, "10.96.0.2", 80)),
	})
	b.Result(service.IPv4, want, reconcile.Result{Generation: 3, Start: ago(time.Hour)})
	r := health.Report{Healthy: true, Status: map[string]health.FamilyReport{"IPv4": {Healthy: true, LastUpdated: ago(time.Second), Generation: 3}}}
	server := serveStore(t, b, r)
	for args, wants := range map[string][]string{
		"":              {": healthy\n", "3 Services: 2 with a port that serves no client\n", "shop/web "},
		"--failing":     {"; 2 listed\n", "shop/empty ", "no client is allowed by the source ranges", "no endpoints"},
		"shop/web":      {"shop/web: programmed\n", "10.96.0.1:80"},
		"web":           {"shop/web: programmed\n"},
		"-n shop web":   {"shop/web: programmed\n"},
		"-n other":      {"No Services\n"},
		"shop/empty":    {"shop/empty: programmed\n", "no endpoints"},
		"web -o json":   {`"ok": true`, `"notProgrammed": 0`},
		"-n shop":       {"3 Services"},
		"web --failing": {"1 Service: all programmed; 0 listed\n"},
	} {
		got := runStatus(t, append(strings.Fields(args), "--server="+server)...)
		if got.Code != 0 || got.Err != "" {
			t.Errorf("%q: exit %d, %s", args, got.Code, got.Err)
		}
		for _, w := range wants {
			if !strings.Contains(got.Out, w) {
				t.Errorf("%q: no %q in\n%s", args, w, got.Out)
			}
		}
	}
}

// TestStatusOfAFailingProxy checks that a failed round is reported at once, although a
// proxy is unhealthy only when failures go on.
func TestStatusOfAFailingProxy(t *testing.T) {
	want := service.New(3, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{shopPort(service.IPv4, "web", 1, front(service.ClusterIP, "10.96.0.1", 80))})
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	b.Result(service.IPv4, want, reconcile.Result{Generation: 3, Start: ago(time.Hour)})
	r := health.Report{Healthy: true, Status: map[string]health.FamilyReport{
		"IPv4": {Healthy: true, Failing: true, LastUpdated: ago(time.Minute), Generation: 3, LastError: "plan: no answer"},
	}}
	server := serveStore(t, b, r)
	got := runStatus(t, "--server="+server)
	if got.Code != 1 || !strings.Contains(got.Out, ": failing\n") || !strings.Contains(got.Out, "plan: no answer") {
		t.Errorf("exit %d and\n%s", got.Code, got.Out)
	}
	if got := runStatus(t, "shop/web", "--server="+server); got.Code != 0 {
		t.Errorf("about a Service that is in force: exit %d and\n%s", got.Code, got.Out)
	}
}

// A Service whose family the kernel does not forward is not well, whoever asks about
// it by name. One of another family is.
func TestStatusOfABlockedFamily(t *testing.T) {
	want := service.New(3, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{
		shopPort(service.IPv4, "four", 1, front(service.ClusterIP, "10.96.0.1", 80)),
		shopPort(service.IPv6, "six", 1, front(service.ClusterIP, "fd00:10:96::1", 80)),
	})
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	for _, f := range service.Families {
		b.Result(f, want, reconcile.Result{Generation: 3, Start: ago(time.Hour)})
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
		got := runStatus(t, append(strings.Fields(args), "--server="+server)...)
		if got.Code != tt.code || !strings.Contains(got.Out, tt.says) {
			t.Errorf("%q: exit %d, want %d and %q\n%s%s", args, got.Code, tt.code, tt.says, got.Out, got.Err)
		}
	}
}

// The document's form is a promise.
func TestStatusJSON(t *testing.T) {
	server := serveStore(t, populatedStore(), failingReport())
	got := runStatus(t, "-o=json", "--server="+server, "--failing")
	var d map[string]any
	if err := json.Unmarshal([]byte(got.Out), &d); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"server", "ok", "summary", "mode", "node", "version", "started", "generation", "health", "services"} {
		if d[key] == nil {
			t.Errorf("no %q in\n%s", key, got.Out)
		}
	}
	if got.Code != 1 || d["ok"] != false || strings.Contains(got.Out, "\x1b") {
		t.Errorf("exit %d, ok %v", got.Code, d["ok"])
	}
}

// TestStatusOfMany prints 10,000 Services, or the one that fails.
func TestStatusOfMany(t *testing.T) {
	const many = 10000
	var ports []*service.Port
	for i := range many {
		ip := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
		ports = append(ports, shopPort(service.IPv4, fmt.Sprintf("s%05d", i), 3, front(service.ClusterIP, ip, 80)))
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	b := &servicestate.Store{Latest: func() *service.Snapshot { return want }}
	b.Result(service.IPv4, want, reconcile.Result{Generation: 1, Start: ago(time.Hour), Err: &reconcile.PortError{Name: ports[77].Name, Err: errors.New("refused")}})
	server := serveStore(t, b, failingReport())
	begin := time.Now()
	all := runStatus(t, "--server="+server)
	t.Logf("%d Services, %d bytes in %s", many, len(all.Out), time.Since(begin))
	if n := strings.Count(all.Out, "\nshop/s"); n != many || all.Code != 1 {
		t.Errorf("exit %d, %d Services, want %d", all.Code, n, many)
	}
	if got := runStatus(t, "--server="+server, "--failing"); strings.Count(got.Out, "\nshop/s") != 1 || !strings.Contains(got.Out, "shop/s00077") {
		t.Errorf("--failing:\n%s", got.Out)
	}
}

func TestStatusMistakes(t *testing.T) {
	dir := files(t, map[string]string{
		"none.yaml": configHead + "metricsBindAddress: 127.0.0.1:0\n",
		"bad.yaml":  configHead + "mode: magic\n",
	})
	for args, want := range map[string]string{
		"-o xml":                           `--output: "xml" is unknown: want table, wide or json`,
		"a b":                              "status wants one Service, not 2",
		"a/b/c":                            `service "a/b/c": want NAMESPACE/NAME or NAME`,
		"/web":                             `service "/web": want NAMESPACE/NAME or NAME`,
		"shop/":                            `service "shop/": want NAMESPACE/NAME or NAME`,
		"shop/web -n other":                `service "shop/web" is not in the namespace of --namespace, "other"`,
		"--server http://x":                `--server: "http://x" is no address: want HOST or HOST:PORT, such as 127.0.0.1:10249 or [::1]:10249`,
		"--timeout soon":                   `--timeout: "soon" is no duration: want one such as 30s or 1h30m`,
		"--failin":                         "unknown flag --failin; did you mean --failing?",
		"--config DIR/none.yaml":           "DIR/none.yaml: metricsBindAddress has port 0, so the proxy serves no metrics and cannot be asked",
		"--config DIR/absent.yaml":         "read configuration: stat DIR/absent.yaml: no such file or directory",
		"--config DIR/bad.yaml --outptu x": "unknown flag --outptu; did you mean --output?",
	} {
		got := call(t, dir, append([]string{"status"}, strings.Fields(args)...)...)
		got.Err = strings.Replace(got.Err, "kube-proxy status wants", "status wants", 1)
		if diff := cmp.Diff(outcome{2, "", "kube-proxy: " + want + "\n"}, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", args, diff)
		}
	}
}

func TestStatusAddress(t *testing.T) {
	dir := files(t, map[string]string{"any.yaml": configHead + "metricsBindAddress: '[::]:9999'\n", "plain.yaml": configHead})
	for _, tt := range []struct{ config, server, want string }{
		{"", "", "127.0.0.1:10249"},
		{"plain.yaml", "", "127.0.0.1:10249"},
		{"any.yaml", "", "[::1]:9999"},
		{"any.yaml", "node-b", "node-b:10249"},
		{"", "0.0.0.0:7", "127.0.0.1:7"},
		{"", ":7", "127.0.0.1:7"},
		{"", "fd00::1", "[fd00::1]:10249"},
		{"", "[fd00::1]", "[fd00::1]:10249"},
		{"", "::", "[::1]:10249"},
	} {
		q := &statusOptions{server: tt.server}
		if tt.config != "" {
			q.config = filepath.Join(dir, tt.config)
		}
		if got, err := q.address(); got != tt.want || err != nil {
			t.Errorf("address of %+v = %q, %v", tt, got, err)
		}
	}
}

// handle serves f at the address it returns.
func handle(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}
