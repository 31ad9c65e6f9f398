// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"net/http"
	"testing"
	"time"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftmonitor"
)

// apiFault is a fault of the requests of the node of that name.
type apiFault struct {
	name  string
	fault cluster.Fault
}

func apiFaults() []apiFault {
	return []apiFault{
		{"error", cluster.Fault{Status: http.StatusInternalServerError}},
		{"overload", cluster.Fault{Status: http.StatusServiceUnavailable, RetryAfter: time.Second}},
		{"throttle", cluster.Fault{Status: http.StatusTooManyRequests, RetryAfter: time.Second}},
		{"refused", cluster.Fault{Status: http.StatusUnauthorized}},
		{"reset", cluster.Fault{Cut: truncatedLength, Reset: true}},
		{"truncated", cluster.Fault{Cut: truncatedLength}},
		{"halves", cluster.Fault{Status: http.StatusInternalServerError, Only: "endpointslices"}},
	}
}

// truncatedLength is less than the size of any list or event of a Service, so that none
// gets through a watch.
const truncatedLength = 200

// minFaults is how many spoiled requests show that the proxy retries.
func (x apiFault) minFaults() int {
	if x.fault.Only != "" {
		return 2
	}
	return 4
}

// test spoils the requests of a proxy when it starts, and again when it runs. It creates
// one Service during the fault, which silent watches must miss, and one when all is well.
func (x apiFault) test(t *testing.T, s *site, number int) {
	meanwhile := newApp("with-"+x.name, number, s.webs()...)
	after := newApp("after-"+x.name, number+1, s.webs()...)
	front, err := s.NewFaultProxy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = front.Close() })
	n := s.join(t, x.name)
	front.SetFault(x.fault)
	n.start(t, cluster.Login{Server: front.URL})
	kit.Until(t, "requests are spoiled", func() bool { return front.FaultCount() >= x.minFaults() })
	n.neverProgrammed(t)
	checkWrites(t, "before anything was read", n.counts(t), nftmonitor.Counts{})
	front.SetFault(cluster.Fault{})
	n.awaitProgrammed(t)
	n.healthy(t)

	load := n.load(t, newApp("web", 1))
	spoiled := front.FaultCount()
	before := n.cutOff(t, front, x.fault)
	if err := s.save(t.Context(), meanwhile); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "requests are spoiled again", func() bool { return front.FaultCount() >= spoiled+x.minFaults() })
	r, status := n.report(t)
	if status != http.StatusOK || !r.Healthy {
		t.Errorf("/healthz has status %d, want 200: %+v", status, r)
	}
	kit.Until(t, "the failure is known", func() bool { return n.source(t, "endpointslices").Error != "" })
	if x.fault.Only == "" { // else what can be read is programmed
		checkWrites(t, "during the outage", n.counts(t).Since(before), nftmonitor.Counts{})
	}
	front.SetFault(cluster.Fault{})
	if err := s.save(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	n.awaitProgrammed(t)
	kit.Until(t, "the failure is over", func() bool { return n.source(t, "endpointslices").Error == "" })
	lossless(t, load)
	n.checkLogSize(t)
}

// cutOff spoils the requests of a node that has programmed everything, and returns the
// notifications about its rules until then. Other parts write nothing meanwhile, as it
// would be programmed after the count.
func (n *node) cutOff(t *testing.T, front *cluster.FaultProxy, how cluster.Fault) nftmonitor.Counts {
	t.Helper()
	n.site.saving.Lock()
	defer n.site.saving.Unlock()
	n.awaitProgrammed(t)
	reported := n.counts(t)
	front.SetFault(how)
	return reported
}

// checkLogSize requires that the log does not repeat itself without end.
func (n *node) checkLogSize(t *testing.T) {
	t.Helper()
	const most = 8
	lines := n.Log.Count(`"err"`) + n.Log.Count("err=")
	t.Logf("%d lines with an error", lines)
	if lines > most {
		t.Errorf("%d lines with an error, want at most %d", lines, most)
	}
}

// testSlow delays every response to a proxy.
func testSlow(t *testing.T, s *site) {
	front, err := s.NewFaultProxy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = front.Close() })
	n := s.join(t, "slow")
	front.SetFault(cluster.Fault{Delay: 2 * time.Second})
	n.start(t, cluster.Login{Server: front.URL})
	n.AwaitLog(t, "Still reading and programming for the first time")
	n.awaitProgrammed(t)
	n.healthy(t)
	if a, err := n.host.Ask(t.Context(), netlab.Query{Proto: "tcp", To: newApp("web", 1).addr()}); err != nil || a.Outcome != netlab.Answered {
		t.Errorf("the Service: %s, %v", a.Outcome, err)
	}
}
