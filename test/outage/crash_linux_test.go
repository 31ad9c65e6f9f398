// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"errors"
	"net/http"
	"testing"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/nftmonitor"
	"kubeproxy/test/program"
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
	if err := s.save(t.Context(), web); err != nil {
		t.Fatal(err)
	}
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

	if err := s.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	starts.healthy(t)
	for _, family := range []string{"IPv4", "IPv6"} {
		starts.AwaitLog(t, `"Programmed"`, family, "changed=false")
	}
	kit.Until(t, "the failure is over", func() bool { return runs.source(t, "services").Error == "" })
	checkWrites(t, "during the outage", runs.counts(t).Since(before), nftmonitor.Counts{})
	checkWrites(t, "by the proxy that started", starts.counts(t).Since(earlier), nftmonitor.Counts{})
	if err := s.save(t.Context(), more); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*node{runs, starts} {
		n.awaitProgrammed(t)
		if !n.answers(t, more) {
			t.Errorf("%s: a Service made after the outage does not answer", n.host.Name)
		}
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
	if status != http.StatusServiceUnavailable || r.Status["IPv4"].Reason != reason {
		t.Errorf("%s: /healthz has status %d, %+v; want 503 and %q", n.host.Name, status, r, reason)
	}
}

// checkWrites compares the kernel's notifications about rules. Anything but elements
// would mean a new layout, and unexpectedly removed elements a flush.
func checkWrites(t *testing.T, when string, got, want nftmonitor.Counts) {
	t.Helper()
	if got.String() != want.String() {
		t.Errorf("written %s: %s; want %s", when, got, want)
	}
}

// testCompacted makes the proxy miss changes of every kind. When the API server is
// reachable again, it has no history of them.
func testCompacted(t *testing.T, s *site) {
	kept, gone := newApp("kept", 11, s.webs()...), newApp("gone", 12, s.webs()...)
	moved, fresh := newApp("moved", 13, s.Host("web-1")), newApp("fresh", 14, s.webs()...)
	if err := s.save(t.Context(), kept, gone, moved); err != nil {
		t.Fatal(err)
	}
	front, err := s.NewFaultProxy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Etcd.Restart(t.Context()), s.APIServer.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the failure is known", func() bool { return n.source(t, "services").Error != "" })
	checkWrites(t, "during the outage", n.counts(t).Since(before), nftmonitor.Counts{})
	front.SetFault(cluster.Fault{})
	n.awaitProgrammed(t)
	n.onlyElements(t, before)
	if n.answers(t, gone) || !n.answers(t, fresh) || !n.answers(t, moved) {
		t.Error("what was deleted still answers, or what is there does not")
	}
	lossless(t, load)
}

// testPaused has an API server that neither responds nor closes connections. HTTP/2
// pings, by default every 30 seconds, distinguish that from a watch without events.
func testPaused(t *testing.T, s *site) {
	kept, late := newApp("kept", 11, s.webs()...), newApp("late", 15, s.webs()...)
	if err := s.save(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
	n := s.join(t, "runs")
	pings := []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS=1", "HTTP2_PING_TIMEOUT_SECONDS=1"}
	n.launch(t, n.flags(t, cluster.Login{}), pings)
	n.healthy(t)
	n.awaitProgrammed(t)
	load := n.load(t, kept)
	before := n.counts(t)
	if err := s.APIServer.Pause(); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the silence is noticed", func() bool { return n.source(t, "services").Error != "" })
	if r, status := n.report(t); status != http.StatusOK {
		t.Errorf("/healthz has status %d, want 200: %+v", status, r)
	}
	if err := s.APIServer.Resume(); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the failure is over", func() bool { return n.source(t, "services").Error == "" })
	checkWrites(t, "during the silence", n.counts(t).Since(before), nftmonitor.Counts{})
	if err := s.save(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	n.awaitProgrammed(t)
	if !n.answers(t, late) {
		t.Error("a Service made after the silence does not answer")
	}
	lossless(t, load)
	n.checkLogSize(t)
}

// testServerCertificate starts a proxy while the server's certificate is expired, beside
// one that is connected.
func testServerCertificate(t *testing.T, s *site) {
	web := newApp("web", 1, s.webs()...)
	if err := s.save(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	runs, starts := s.join(t, "runs"), s.join(t, "starts")
	runs.start(t, cluster.Login{})
	runs.healthy(t)
	load := runs.load(t, web)
	s.certify(t, past)
	starts.start(t, cluster.Login{})
	kit.Until(t, "the proxy answers", func() bool { return starts.Status(t, program.HealthAddr, "/healthz") != 0 })
	kit.Until(t, "the certificate is complained of", func() bool { return starts.Log.Has("certificate has expired") })
	starts.neverProgrammed(t)
	if _, status := runs.report(t); status != http.StatusOK {
		t.Errorf("the proxy that was connected has status %d", status)
	}
	s.certify(t, future)
	starts.healthy(t)
	starts.awaitProgrammed(t)
	lossless(t, load)
}
