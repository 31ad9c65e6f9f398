// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/nftmonitor"
	"kubeproxy/test/program"
	"kubeproxy/test/scale"
)

// TestCrash shares one control plane, which each part leaves in order. The proxies of a
// part end with it.
func TestCrash(t *testing.T) {
	t.Parallel()
	s := newSite(t, cluster.Options{}, "runs", "starts")
	t.Run("killed", func(t *testing.T) { testKilled(t, s) })
	t.Run("forgotten", func(t *testing.T) { testCompacted(t, s) })
	t.Run("paused", func(t *testing.T) { testPaused(t, s) })
	t.Run("certificate", func(t *testing.T) { testServerCertificate(t, s) })
}

// testKilled runs one proxy while the API server is down, and starts another one
// meanwhile, on a node that has its rules from before.
func testKilled(t *testing.T, s *site) {
	web, more := newApp("web", 1, s.webs()...), newApp("more", 2, s.webs()...)
	kit.Must(t, s.save(t.Context(), web))
	runs, starts := s.join(t, "runs"), s.join(t, "starts")
	for _, n := range []*node{runs, starts} {
		n.start(t, cluster.Login{})
		n.healthy(t)
		n.awaitProgrammed(t)
	}
	starts.Stop(t)
	loads := []func(){}
	for _, n := range []*node{runs, starts} {
		l := n.load(t, web)
		loads = append(loads, func() { lossless(t, l) })
	}
	before, earlier := runs.counts(t), starts.counts(t)

	s.APIServer.Kill()
	starts.start(t, cluster.Login{})
	kit.Until(t, "the failure is known", func() bool { return runs.source(t, "services").Error != "" })
	if r, status := runs.report(t); status != http.StatusOK || !r.Sources[0].Synced {
		t.Errorf("API server down: /healthz has status %d, %+v; want 200, for a restart would help nobody", status, r)
	}
	starts.AwaitLog(t, "Still reading and programming for the first time", "IPv4", "IPv6")
	starts.neverProgrammed(t)

	kit.Must(t, s.APIServer.Start(t.Context()))
	starts.healthy(t)
	for _, family := range []string{"IPv4", "IPv6"} {
		starts.AwaitLog(t, `"Programmed"`, family, "changed=false")
	}
	kit.Until(t, "the failure is over", func() bool { return runs.source(t, "services").Error == "" })
	checkWrites(t, "during the outage", runs.counts(t).Since(before), nftmonitor.Counts{})
	checkWrites(t, "by the proxy that started", starts.counts(t).Since(earlier), nftmonitor.Counts{})
	kit.Must(t, s.save(t.Context(), more))
	for _, n := range []*node{runs, starts} {
		n.awaitProgrammed(t)
		kit.Check(t, n.answers(t, more), "%s: a Service made after the outage does not answer", n.host.Name)
	}
	for _, end := range loads {
		end()
	}
}

// neverProgrammed requires that a proxy which could not read anything reports that.
func (n *node) neverProgrammed(t *testing.T) {
	t.Helper()
	kit.Until(t, "/healthz answers", func() bool { return n.Status(t, program.HealthAddr, "/healthz") != 0 })
	r, status := n.report(t)
	const reason = "nothing was ever programmed"
	kit.Check(t, status == http.StatusServiceUnavailable && r.Status["IPv4"].Reason == reason,
		"%s: /healthz has status %d, %+v; want 503 and %q", n.host.Name, status, r, reason)
}

// checkWrites compares the kernel's notifications about rules. Anything but elements
// would mean a new layout, and unexpectedly removed elements a flush.
func checkWrites(t *testing.T, when string, got, want nftmonitor.Counts) {
	t.Helper()
	kit.Check(t, got.String() == want.String(), "written %s: %s; want %s", when, got, want)
}

// testCompacted makes the proxy miss changes of every kind. When the API server is
// reachable again, it has no history of them.
func testCompacted(t *testing.T, s *site) {
	kept, gone := newApp("kept", 11, s.webs()...), newApp("gone", 12, s.webs()...)
	moved, fresh := newApp("moved", 13, s.Host("web-1")), newApp("fresh", 14, s.webs()...)
	kit.Must(t, s.save(t.Context(), kept, gone, moved))
	front, err := s.NewFaultProxy(t.Context())
	kit.Must(t, err)
	defer front.Close()
	n := s.join(t, "runs")
	n.start(t, cluster.Login{Server: front.URL})
	n.healthy(t)
	n.awaitProgrammed(t)
	load := n.load(t, kept)
	before := n.counts(t)
	n.guard(kept)

	front.SetFault(cluster.Fault{Status: http.StatusServiceUnavailable})
	err = errors.Join(s.remove(t.Context(), gone), s.save(t.Context(), fresh, moved.moved(s.Host("web-2"))), s.Compact(t.Context()))
	kit.Must(t, err)
	kit.Must(t, errors.Join(s.Etcd.Restart(t.Context()), s.APIServer.Restart(t.Context())))
	kit.Until(t, "the failure is known", func() bool { return n.source(t, "services").Error != "" })
	checkWrites(t, "during the outage", n.counts(t).Since(before), nftmonitor.Counts{})
	front.SetFault(cluster.Fault{})
	n.awaitProgrammed(t)
	n.onlyElements(t, before)
	kit.Check(t, !n.answers(t, gone) && n.answers(t, fresh) && n.answers(t, moved),
		"what was deleted still answers, or what is there does not")
	lossless(t, load)
}

// testPaused has an API server that neither responds nor closes connections. HTTP/2
// pings, by default every 30 seconds, distinguish that from a watch without events.
func testPaused(t *testing.T, s *site) {
	kept, late := newApp("kept", 11, s.webs()...), newApp("late", 15, s.webs()...)
	kit.Must(t, s.save(t.Context(), kept))
	n := s.join(t, "runs")
	pings := []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS=1", "HTTP2_PING_TIMEOUT_SECONDS=1"}
	n.launch(t, n.flags(t, cluster.Login{}), pings)
	n.healthy(t)
	n.awaitProgrammed(t)
	load := n.load(t, kept)
	before := n.counts(t)
	kit.Must(t, s.APIServer.Pause())
	kit.Until(t, "the silence is noticed", func() bool { return n.source(t, "services").Error != "" })
	r, status := n.report(t)
	kit.Check(t, status == http.StatusOK, "/healthz has status %d, want 200: %+v", status, r)
	kit.Must(t, s.APIServer.Resume())
	kit.Until(t, "the failure is over", func() bool { return n.source(t, "services").Error == "" })
	checkWrites(t, "during the silence", n.counts(t).Since(before), nftmonitor.Counts{})
	kit.Must(t, s.save(t.Context(), late))
	n.awaitProgrammed(t)
	kit.Check(t, n.answers(t, late), "a Service made after the silence does not answer")
	lossless(t, load)
	n.checkLogSize(t)
}

// testServerCertificate starts a proxy while the server's certificate is expired, beside
// one that is connected.
func testServerCertificate(t *testing.T, s *site) {
	web := newApp("web", 1, s.webs()...)
	kit.Must(t, s.save(t.Context(), web))
	runs, starts := s.join(t, "runs"), s.join(t, "starts")
	runs.start(t, cluster.Login{})
	runs.healthy(t)
	load := runs.load(t, web)
	s.certify(t, past)
	starts.start(t, cluster.Login{})
	kit.Until(t, "the proxy answers", func() bool { return starts.Status(t, program.HealthAddr, "/healthz") != 0 })
	kit.Until(t, "the certificate is complained of", func() bool { return starts.Log.Has("certificate has expired") })
	starts.neverProgrammed(t)
	_, status := runs.report(t)
	kit.Check(t, status == http.StatusOK, "the proxy that was connected has status %d", status)
	s.certify(t, future)
	starts.healthy(t)
	starts.awaitProgrammed(t)
	lossless(t, load)
}

// TestAnswers shares one healthy control plane. Each part has a node of its own, for
// which a fault proxy spoils the responses.
func TestAnswers(t *testing.T) {
	t.Parallel()
	parts := []struct {
		name string
		test func(*testing.T, *site)
	}{
		{"slow", testSlow},
		{"token", testWrongToken},
		{"expired", testExpired},
		{"no-nodes", testNoNodes},
		{"no-slices", testNoSlices},
		{"health", testHealthPort},
		{"metrics", testMetricsPort},
	}
	var names []string
	for _, x := range apiFaults() {
		names = append(names, x.name)
	}
	for _, p := range parts {
		names = append(names, p.name)
	}
	s := newSite(t, cluster.Options{Authorization: cluster.RBAC}, names...)
	kit.Must(t, s.save(t.Context(), webOf(s)))
	for i, x := range apiFaults() {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			x.test(t, s, 100+2*i)
		})
	}
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			p.test(t, s)
		})
	}
}

// webOf is a Service that always exists.
func webOf(s *site) app { return newApp("web", 1, s.webs()...) }

// Validities of a certificate, from now on.
const (
	past   = -time.Hour
	future = time.Hour
)

// certify gives the API server a certificate and waits until the server uses it.
func (s *site) certify(t *testing.T, valid time.Duration) {
	t.Helper()
	until := time.Now().Add(valid)
	kit.Must(t, s.SetServerCertificate(until))
	kit.Until(t, "the server's new certificate", func() bool {
		conn, err := s.Host("control").Dial(t.Context(), "tcp", strings.TrimPrefix(s.Server, "https://"))
		if err != nil {
			return false
		}
		defer conn.Close()
		c := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		if c.HandshakeContext(t.Context()) != nil {
			return false
		}
		return c.ConnectionState().PeerCertificates[0].NotAfter.Sub(until).Abs() < 2*time.Second
	})
}

func testWrongToken(t *testing.T, s *site) {
	testUnknownUser(t, s.join(t, "token"), cluster.Login{Token: "wrong"})
}

func testExpired(t *testing.T, s *site) {
	testUnknownUser(t, s.join(t, "expired"), cluster.Login{User: "system:kube-proxy", Until: time.Now().Add(past)})
}

// testUnknownUser checks that a proxy with an unknown user retries, as the cluster may
// add the user later, and reports the reason.
func testUnknownUser(t *testing.T, n *node, l cluster.Login) {
	n.start(t, l)
	kit.Until(t, "the log says why", func() bool { return n.Log.Has("nauthorized") })
	n.AwaitLog(t, "Still reading and programming for the first time")
	n.neverProgrammed(t)
	e := n.source(t, "services").Error
	kit.Check(t, e != "", "/healthz has no error of its source")
	kit.Check(t, !n.Ended(), "the proxy has ended")
	n.checkLogSize(t)
}

// policyRule is a rule of a ClusterRole.
type policyRule struct{ to, rule string }

func readServices() policyRule {
	return policyRule{"services", `{apiGroups: [""], resources: [services], verbs: [list, watch]}`}
}

func readSlices() policyRule {
	return policyRule{"slices", `{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}`}
}

func readNodes() policyRule {
	return policyRule{"nodes", `{apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}`}
}

func readRanges() policyRule {
	return policyRule{"ranges", `{apiGroups: [networking.k8s.io], resources: [servicecidrs], verbs: [list, watch]}`}
}

// grant gives a user additional privileges.
func (s *site) grant(t *testing.T, user string, rights ...policyRule) {
	t.Helper()
	for _, r := range rights {
		name := user + "-" + r.to
		text := fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %q}
rules: [%s]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %q}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %q}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %q}]
`, name, r.rule, name, name, user)
		err := s.Apply(t.Context(), []byte(text))
		kit.Need(t, err == nil, "grant %s to %s: %v", r.to, user, err)
	}
}

// testNoNodes denies the proxy access to Nodes: it must work without them.
func testNoNodes(t *testing.T, s *site) {
	n := s.join(t, "no-nodes")
	s.grant(t, "no-nodes", readServices(), readSlices(), readRanges())
	n.start(t, cluster.Login{User: "no-nodes"})
	kit.Until(t, "the log says why", func() bool { return n.Log.Has("nodes", "forbidden") })
	kit.Until(t, "the proxy lives", func() bool { return n.Status(t, program.HealthAddr, "/livez") == http.StatusOK })
	kit.Check(t, n.answers(t, webOf(s)), "the Service does not answer")
	if r, status := n.report(t); status != http.StatusServiceUnavailable || r.NodeReason == "" {
		t.Errorf("/healthz has status %d, %+v; want 503, for nobody knows of the node", status, r)
	}
	s.grant(t, "no-nodes", readNodes())
	n.healthy(t)
	n.awaitProgrammed(t)
	n.checkLogSize(t)
}

// testNoSlices denies the proxy access to EndpointSlices. It must not program Services
// without endpoints, as that would refuse all their traffic.
func testNoSlices(t *testing.T, s *site) {
	n := s.join(t, "no-slices")
	s.grant(t, "no-slices", readServices(), readNodes(), readRanges())
	n.start(t, cluster.Login{User: "no-slices"})
	kit.Until(t, "the log says why", func() bool { return n.Log.Has("endpointslices", "forbidden") })
	n.AwaitLog(t, "Still reading and programming for the first time")
	n.neverProgrammed(t)
	s.grant(t, "no-slices", readSlices())
	n.healthy(t)
	n.awaitProgrammed(t)
	n.checkLogSize(t)
}

// TestScale changes many Services one after the other, and then all of them again and
// again. Times and sizes depend on the machine, so they are only printed. Nothing may be
// lost, recreated or accumulate.
func TestScale(t *testing.T) {
	const services, perSecond, long, churns = 2000, 200, 5 * time.Second, 2
	s := newSite(t, cluster.Options{}, "busy")
	web := webOf(s)
	kit.Must(t, s.save(t.Context(), web))
	many := scale.New(s.Client, "many", services)
	began := time.Now()
	kit.Must(t, many.Create(t.Context()))
	t.Logf("%d Services of %d endpoints written in %s", services, scale.PerService, time.Since(began).Round(time.Millisecond))
	n := s.join(t, "busy")
	n.start(t, cluster.Login{})
	n.healthy(t)
	n.awaitProgrammed(t)
	n.size(t, "first program")
	load := n.load(t, web)
	before := n.counts(t)
	n.guard(web)

	cpu := n.CPU(t)
	changes, err := many.ReplaceAtRate(t.Context(), perSecond, long)
	kit.Must(t, err)
	n.awaitProgrammed(t)
	cpu = n.CPU(t) - cpu
	t.Logf("%d changes in %s: %s of CPU for each", changes, long, (cpu / time.Duration(changes)).Round(time.Microsecond))
	first := n.size(t, "changes of one")
	var last size
	for range churns {
		kit.Must(t, many.ReplaceAll(t.Context()))
		n.awaitProgrammed(t)
		last = n.size(t, "change of all")
	}
	kit.Check(t, last.goroutines <= first.goroutines+10,
		"%.0f goroutines after %d changes of everything, %.0f before", last.goroutines, churns, first.goroutines)
	kit.Check(t, last.memory <= 2*first.memory,
		"%d bytes resident after %d changes of everything, %d before", last.memory, churns, first.memory)
	n.onlyElements(t, before)
	lossless(t, load)
}

// size is the resources of a proxy.
type size struct {
	memory     int64
	goroutines float64
}

// size reads and prints them.
func (n *node) size(t *testing.T, after string) size {
	t.Helper()
	now, peak := n.Memory(t)
	goroutines, ok := n.Metric(t, "go_goroutines")
	kit.Need(t, ok, "no metric go_goroutines")
	t.Logf("after the %s: %.1f MB resident, at most %.1f MB; %.0f goroutines", after, float64(now)/1e6, float64(peak)/1e6, goroutines)
	return size{now, goroutines}
}

// onlyElements requires that since an earlier count only elements changed, and none of
// the guarded ones.
func (n *node) onlyElements(t *testing.T, earlier nftmonitor.Counts) {
	t.Helper()
	written := n.counts(t).Since(earlier)
	t.Logf("written: %s", written)
	for kind := range written {
		kit.Check(t, kind == nftmonitor.NewElement || kind == nftmonitor.DeletedElement || kind == nftmonitor.Commit,
			"written is a %s; want elements only", kind)
	}
	kit.Check(t, n.touched.Load() == 0, "what stayed as it was is in %d changes", n.touched.Load())
}
