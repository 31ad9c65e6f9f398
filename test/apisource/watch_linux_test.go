// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"kubeproxy/common/source"
	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// sink records the objects of a source.
type sink struct {
	mu        sync.Mutex
	synced    bool
	have      map[string]bool
	gone      []string
	silentFor map[string]int
	errs      []string
}

func newSink() *sink { return &sink{have: map[string]bool{}, silentFor: map[string]int{}} }

func (s *sink) set(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have[what] = true
	return true
}

func (s *sink) drop(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.have, what)
	s.gone = append(s.gone, what)
	return true
}

func (s *sink) SetService(o *corev1.Service) bool          { return s.set("service " + o.Name) }
func (s *sink) DeleteService(n types.NamespacedName) bool  { return s.drop("service " + n.Name) }
func (s *sink) SetSlice(o *discoveryv1.EndpointSlice) bool { return s.set("slice " + o.Name) }
func (s *sink) DeleteSlice(n types.NamespacedName) bool    { return s.drop("slice " + n.Name) }
func (s *sink) SetNode(o *corev1.Node)                     { s.set("node " + o.Name) }
func (s *sink) DeleteNode()                                { s.drop("node") }
func (s *sink) SetServiceCIDR(o *networkingv1.ServiceCIDR) { s.set("range " + o.Name) }
func (s *sink) DeleteServiceCIDR(name string)              { s.drop("range " + name) }
func (s *sink) Unread(int)                                 {}
func (s *sink) Batch(deliver func())                       { deliver() }

func (s *sink) Synced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = true
}

// hasAll reports that s has synced and has heard of all of these.
func (s *sink) hasAll(all ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, what := range all {
		if !s.have[what] {
			return false
		}
	}
	return s.synced
}

// follow starts a source that trusts a silence of a second.
func (w fixture) follow(t *testing.T, l cluster.Login) *sink {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig(t, l))
	kit.Must(t, err)
	config.Dial, config.ContentType = w.lab.Node.Dial, "application/vnd.kubernetes.protobuf"
	s := newSink()
	a := &source.APIServer{
		Config: config, NodeName: netlab.NodeName, WatchTimeout: time.Second,
		WatchTimedOut: func(kind string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.silentFor[kind]++
		},
		Report: func(err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.errs = append(s.errs, err.Error())
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx, s) }()
	t.Cleanup(func() {
		cancel()
		err := <-ended
		kit.Check(t, err == nil, "Run: %v", err)
	})
	return s
}

// reportedFailure reports that a failure with these words was reported for a kind.
func (s *sink) reportedFailure(kind, words string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.errs {
		if strings.Contains(e, kind+" ") && strings.Contains(e, words) {
			return true
		}
	}
	return false
}

var kinds = []string{"services", "endpointslices", "nodes", "servicecidrs"}

// An API server that keeps its connections and says nothing is noticed, asked
// again, and followed as soon as it speaks. Nothing is forgotten meanwhile.
func TestSilentAPIServer(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	w.set(t, newNode(), newService("before"))
	front, err := w.NewFaultProxy(t.Context())
	kit.Must(t, err)
	t.Cleanup(func() { _ = front.Close() })
	for name, fault := range map[string]struct {
		server      string
		begin, over func() error
	}{
		"server paused": {w.Server, w.APIServer.Pause, w.APIServer.Resume},
		"answers are lost": {front.URL,
			func() error { front.SetFault(cluster.Fault{Silent: true}); return nil },
			func() error { front.SetFault(cluster.Fault{}); return nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := w.follow(t, cluster.Login{Server: fault.server})
			kit.Until(t, "all that exists", func() bool { return s.hasAll("service before", "node "+netlab.NodeName, "range kubernetes") })
			kit.Until(t, "watches that are quiet are asked for again", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.silentFor["nodes"] > 1 && s.silentFor["servicecidrs"] > 1
			})
			kit.Must(t, fault.begin())
			for _, kind := range kinds {
				kit.Until(t, "a complaint about "+kind, func() bool { return s.reportedFailure(kind, "no answer in 1s") })
			}
			kit.Must(t, fault.over())
			after := strings.ReplaceAll("after "+name, " ", "-")
			w.set(t, newService(after))
			kit.Until(t, "what comes later", func() bool { return s.hasAll("service "+after, "service before") })
			kit.Check(t, len(s.gone) == 0, "forgotten meanwhile: %q", s.gone)
		})
	}
}

// A peer that does not answer at all is noticed by the connection itself, with
// pings, before any watch is silent for too long. The times are shortened as
// the library allows.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	cmd := kubeProxy.Command("--kubeconfig="+w.kubeconfig(t, cluster.Login{}), "--cluster-cidr="+netlab.ClusterCIDR)
	cmd.Env = append(cmd.Environ(), "HTTP2_READ_IDLE_TIMEOUT_SECONDS=1", "HTTP2_PING_TIMEOUT_SECONDS=1")
	p := program.Start(t, w.lab.Node, cmd)
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	p.AwaitLog(t, `"Programmed"`, "IPv6")
	before := program.Generation(t, w.lab.Node)
	kit.Must(t, w.APIServer.Pause())
	awaitSlowLog(t, p, "The API server cannot be read")
	kit.Must(t, w.APIServer.Resume())
	awaitSlowLog(t, p, "The API server can be read again")
	now := program.Generation(t, w.lab.Node)
	kit.Check(t, now == before, "the rules were written %d times, want none", now-before)
	w.set(t, newService("later"))
	p.AwaitLog(t, `"Programmed a change"`, "IPv4")
}

// awaitSlowLog is for what waits for the API client, which rests for up to half
// a minute after some failures and gives a handshake ten seconds.
func awaitSlowLog(t *testing.T, p *program.Proxy, words ...string) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !p.Log.Has(words...); time.Sleep(10 * time.Millisecond) {
		kit.Need(t, !time.Now().After(deadline), "waited in vain for a line of the log with %q", words)
	}
}

// After a restart of the API server that has forgotten all versions everything
// is listed again, and nothing is written.
func TestRelist(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	w.set(t, newNode(), newService("web"))
	p := w.start(t, cluster.Login{})
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	p.AwaitLog(t, `"Programmed"`, "IPv6")
	before := program.Generation(t, w.lab.Node)
	w.APIServer.Kill()
	p.AwaitLog(t, "The API server cannot be read", "remedy")
	kit.Must(t, w.Compact(t.Context()))
	kit.Must(t, w.Etcd.Restart(t.Context()))
	kit.Must(t, w.APIServer.Start(t.Context()))
	awaitSlowLog(t, p, "The API server can be read again")
	now := program.Generation(t, w.lab.Node)
	kit.Check(t, now == before, "the rules were written %d times, want none", now-before)
}

// requests are those that the proxy made, in their order.
type requests struct {
	server string

	mu  sync.Mutex
	all []*http.Request
	at  []time.Time
}

func (r *requests) add(q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all, r.at = append(r.all, q), append(r.at, time.Now())
}

// services returns the requests for Services.
func (r *requests) services() []*http.Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*http.Request
	for _, q := range r.all {
		if strings.HasSuffix(q.URL.Path, "/services") {
			all = append(all, q)
		}
	}
	return all
}

// lists returns when lists were asked for.
func (r *requests) lists() []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []time.Time
	for i, q := range r.all {
		if q.Method == http.MethodGet && q.URL.Query().Get("watch") == "" { // Events are written, too
			all = append(all, r.at[i])
		}
	}
	return all
}

// refusingServer starts an API server on the control host that refuses everything, and
// returns what it is asked.
func (w fixture) refusingServer(t *testing.T) (seen *requests, config string) {
	t.Helper()
	l, err := w.lab.Host("control").Listen(t.Context(), "tcp", "192.0.2.100:0")
	kit.Must(t, err)
	seen = &requests{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		seen.add(q.Clone(context.Background()))
		http.Error(w, "no", http.StatusServiceUnavailable)
	}))
	server.Listener.Close()
	server.Listener = l
	server.Start()
	t.Cleanup(server.Close)
	config = filepath.Join(t.TempDir(), "kubeconfig")
	u := url.URL{Scheme: "http", Host: l.Addr().String()}
	seen.server = u.String()
	text := `{apiVersion: v1, kind: Config, clusters: [{name: a, cluster: {server: "` + u.String() + `"}}], users: [{name: a, user: {}}], contexts: [{name: a, context: {cluster: a, user: a}}], current-context: a}`
	kit.WriteFile(t, config, text)
	return seen, config
}

// The API server receives the content types of the configuration, and requests to stream
// existing objects. Its refusals are logged once.
func TestContentTypes(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	for name, tc := range map[string]struct {
		flags []string
		want  string
	}{
		"default": {nil, "application/vnd.kubernetes.protobuf"},
		"JSON":    {[]string{"--kube-api-content-type=application/json"}, "application/json"},
	} {
		t.Run(name, func(t *testing.T) {
			seen, config := w.refusingServer(t)
			p := kubeProxy.Start(t, w.lab.Node, append(tc.flags, "--kubeconfig="+config)...)
			kit.Until(t, "requests", func() bool { return len(seen.services()) > 0 })
			q := seen.services()[0]
			got := q.Header.Get("Accept")
			kit.Check(t, strings.HasPrefix(got, tc.want), "Accept = %q, want %q", got, tc.want)
			if got := q.Header.Get("User-Agent"); !strings.HasPrefix(got, "kube-proxy/") {
				t.Errorf("User-Agent = %q", got)
			}
			if q.URL.Query().Get("sendInitialEvents") != "true" || q.URL.Query().Get("allowWatchBookmarks") != "true" {
				t.Errorf("query %q, want a stream of what exists, with bookmarks", q.URL.RawQuery)
			}
			p.AwaitLog(t, "The API server cannot be read")
			p.Stop(t)
			n := p.Log.Count("The API server cannot be read")
			kit.Check(t, n <= 1, "%d lines for one sort of failure", n)
		})
	}
}

// The limits hold for all kinds together. They are for lists, of which the
// API server has to make an answer each time, and not for watches.
func TestRateLimits(t *testing.T) {
	t.Parallel()
	w := newLab(t)
	seen, config := w.refusingServer(t)
	begin := time.Now() // and not the first arrival, which may be late
	p := kubeProxy.Start(t, w.lab.Node, "--kubeconfig="+config, "--kube-api-qps=1", "--kube-api-burst=1")
	const n = 5
	kit.Until(t, "lists", func() bool { return len(seen.lists()) >= n })
	took := seen.lists()[n-1].Sub(begin)
	kit.Check(t, took >= (n-1)*time.Second, "%d lists within %s, want one a second", n, took)
	host := strings.TrimPrefix(seen.server, "http://")
	for _, name := range []string{"rest_client_request_duration_seconds", "rest_client_rate_limiter_duration_seconds"} {
		n, _ := p.Metric(t, name, "verb", "GET", "host", host)
		kit.Check(t, n != 0, "metric %s of %s has counted nothing", name, host)
	}
	p.Stop(t)
}

// Requests to the API server are counted under the names that dashboards of Kubernetes
// use.
func TestClientMetrics(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	p := w.start(t, cluster.Login{})
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	host := strings.TrimPrefix(w.Server, "https://")
	n, _ := p.Metric(t, "rest_client_requests_total", "code", "200", "method", "GET", "host", host)
	kit.Check(t, n >= 4, "%v requests, want at least one for each kind", n)
	for _, kind := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		n, _ := p.Metric(t, "kubeproxy_source_synced", "source", kind)
		kit.Check(t, n == 1, "source %s is not synced", kind)
	}
}

// The cluster whose memory is measured.
const (
	manyServices = 10000
	perService   = 10
	churns       = 10
)

// BenchmarkMemory shows what the program takes to follow 10,000 Services with
// ten endpoints each, at first and while all endpoints are replaced again and
// again. It runs for many minutes, most of which the API server writes.
func BenchmarkMemory(b *testing.B) {
	w := newFixture(b, cluster.Options{Flags: []string{"--enable-priority-and-fairness=false", "--max-requests-inflight=0", "--max-mutating-requests-inflight=0"}})
	w.set(b, newNode())
	var services []metav1.Object
	for i := range manyServices {
		services = append(services, newService(fmt.Sprintf("service-%d", i)))
	}
	w.set(b, services...)
	w.churn(b, 0)
	for b.Loop() {
		p := w.start(b, cluster.Login{}, "--iptables-min-sync-period=1s")
		awaitEndpoints(b, p)
		measure(b, p, "first")
		for n := range churns {
			w.churn(b, n+1)
			time.Sleep(3 * time.Second) // what is written is programmed a second later
			measure(b, p, fmt.Sprintf("churn-%d", n+1))
		}
		p.Stop(b)
	}
}

// churn gives every Service endpoints that none had before.
func (w fixture) churn(b *testing.B, n int) {
	b.Helper()
	var slices []metav1.Object
	for i := range manyServices {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 0x0b000000+uint32(n*manyServices+i)*perService)
		slices = append(slices, newSlice(fmt.Sprintf("service-%d", i), netip.AddrFrom4(a), perService))
	}
	w.set(b, slices...)
}

func awaitEndpoints(b *testing.B, p *program.Proxy) {
	b.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if p.Status(b, program.MetricsAddr, "/metrics") != 0 {
			if n, _ := p.Metric(b, "kubeproxy_programmed_endpoints", "ip_family", "IPv4"); n >= manyServices*perService {
				return
			}
		}
		kit.Need(b, !time.Now().After(deadline), "not all endpoints were programmed in time")
	}
}

// measure prints what p takes now, and the most it ever took.
func measure(b *testing.B, p *program.Proxy, when string) {
	b.Helper()
	time.Sleep(2 * time.Second)
	now, peak := p.Memory(b)
	heap, _ := p.Metric(b, "go_memstats_heap_alloc_bytes")
	idle, _ := p.Metric(b, "go_memstats_heap_idle_bytes")
	released, _ := p.Metric(b, "go_memstats_heap_released_bytes")
	fmt.Printf("%s: RSS %d MB, peak %d MB, heap %.0f MB, idle and kept %.0f MB\n", when, now>>20, peak>>20, heap/1e6, (idle-released)/1e6)
	b.ReportMetric(float64(now>>20), when+"-RSS-MB")
}

// nftCommand lists something of the IPv4 table: its type and its name.
func nftCommand(what []string) *exec.Cmd {
	return exec.Command("nft", "list", what[0], "ip", "kube-services", what[1])
}

// A ServiceCIDR that comes or goes changes the rules, without anything else
// having changed.
func TestServiceCIDRs(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	p := w.start(t, cluster.Login{User: "system:kube-proxy"})
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	drops := func(prefix string) func() bool {
		return func() bool { return strings.Contains(w.nft(t, "chain", "postrouting"), prefix+" jump unallocated") }
	}
	kit.Until(t, "the first range", drops(cluster.ServiceCIDRv4))
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.20.0.0/16"}}}
	ranges := w.Client.NetworkingV1().ServiceCIDRs()
	if _, err := ranges.Create(t.Context(), more, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "another range", drops("172.20.0.0/16"))
	// No controller runs that would see that no Service needs it.
	now, err := ranges.Get(t.Context(), more.Name, metav1.GetOptions{})
	kit.Must(t, err)
	now.Finalizers = nil
	_, err = ranges.Update(t.Context(), now, metav1.UpdateOptions{})
	kit.Must(t, err)
	kit.Must(t, ranges.Delete(t.Context(), more.Name, metav1.DeleteOptions{}))
	kit.Until(t, "the range to go", func() bool { return !drops("172.20.0.0/16")() })
	kit.Check(t, drops(cluster.ServiceCIDRv4)(), "the first range went, too")
}

// oldClusterRole are those of a kube-proxy before ServiceCIDRs.
const oldClusterRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: old}
rules:
- {apiGroups: [""], resources: [services, nodes], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: old}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: old}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: old}]
`

// A proxy that may not read ServiceCIDRs works without them, logs that once, and is in
// sync.
func TestWithoutServiceCIDRs(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	kit.Must(t, w.Apply(t.Context(), []byte(oldClusterRole)))
	w.set(t, newNode())
	p := w.start(t, cluster.Login{User: "old"})
	p.AwaitLog(t, "Going on without", `kind="servicecidrs"`, "forbidden")
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	kit.Until(t, "healthy", func() bool { return p.Status(t, program.HealthAddr, "/healthz") == 200 })
	_, found := p.Metric(t, "kubeproxy_source_synced", "source", "servicecidrs")
	kit.Check(t, !found, "a source that nobody has counts as one")
	p.Stop(t)
	n := p.Log.Count("servicecidrs")
	kit.Check(t, n == 1, "%d lines about them, want one", n)
}
