// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// newTestReports completes o, whose zero value has one backend for IPv4.
func newTestReports(o Options) *Reports {
	o.Mode, o.Node = cmp.Or(o.Mode, "nftables"), cmp.Or(o.Node, "node-a")
	if o.Families == nil {
		o.Families = []service.Family{service.IPv4}
	}
	if o.Sources == nil {
		o.Sources = NewManifestSources()
	}
	if o.Processes == nil {
		o.Processes = func() string { return "" }
	}
	o.Tracker = track.New(track.Options{NodeName: o.Node})
	return New(o)
}

// round passes a round to a new Sequence.
func (r *Reports) round(f service.Family, s *service.Snapshot, result reconcile.Result) {
	result.Snapshot = s
	r.Sequence(Backend{}).Report(Round{Mode: "nftables", Family: f, Result: result})
}

// wholeSequence returns every step there is.
func wholeSequence() Sequence {
	return newTestReports(Options{}).Sequence(Backend{
		Takeover: func(reconcile.Result) {}, InForce: func() {},
		CleanConntrack: func(reconcile.Result) (int, error) { return 0, nil },
	})
}

// TestSequence checks who receives which rounds, and in which order.
func TestSequence(t *testing.T) {
	all := wholeSequence()
	always := []string{"health", "metrics", "services", "events", "drift"}
	inForce := []string{"limits", "conditions", "latency", "checks", "problems"}
	after := []string{"log", "takeover"}
	port := portError(v4, "web", errRefused)
	for situation, tt := range map[string]struct {
		err  error
		want []string
	}{
		"everything is in force": {nil, slices.Concat(always, inForce, after, []string{"start", "conntrack"})},
		"but for a port":         {port, slices.Concat(always, inForce, after, []string{"start", "conntrack"})},
		"and something else":     {errors.Join(port, errors.New("no netlink")), slices.Concat(always, after, []string{"conntrack"})},
		"nothing":                {errors.New("no netlink"), slices.Concat(always, after)},
	} {
		var got []string
		s := slices.Clone(all)
		for i := range s {
			s[i].Reporter = Func(func(Round) { got = append(got, s[i].Name) })
		}
		s.Report(Round{Result: reconcile.Result{Outcome: reconcile.Outcome{Err: tt.err}}})
		kit.Same(t, fmt.Sprintf("%s (-want +got)", situation), tt.want, got)
	}
}

// TestSequenceIsDrawn checks that ARCHITECTURE.md draws the steps in their order.
func TestSequenceIsDrawn(t *testing.T) {
	text := kit.ReadFile(t, "../../ARCHITECTURE.md")
	_, drawn, found := strings.Cut(string(text), "Loop --> health")
	drawn, _, _ = strings.Cut("health"+drawn, "health, services -->")
	all := wholeSequence()
	for _, s := range all {
		at := strings.Index(drawn, s.Name)
		kit.Need(t, found && at >= 0, "step %s is missing, or not in its place, in:\n%s", s.Name, drawn)
		drawn = drawn[at+len(s.Name):]
	}
}

// TestEventsAreWired checks that each reporter that writes Events has where to.
func TestEventsAreWired(t *testing.T) {
	r := newTestReports(Options{API: &rest.Config{Host: "http://127.0.0.1:1"}})
	if e := r.Events; e == nil || r.limits.events != e || r.OtherProxies.events != e || r.sink.events != e {
		t.Errorf("limits %p, other proxies %p, sink %p; want %p", r.limits.events, r.OtherProxies.events, r.sink.events, e)
	}
}

// TestSequenceOfPlainBackend checks that a step without a function is left out.
func TestSequenceOfPlainBackend(t *testing.T) {
	s := newTestReports(Options{}).Sequence(Backend{})
	last := s[len(s)-1].Name
	kit.Check(t, last == "log", "the last step is %s, want log", last)
}

// lineFunc is called with each line that is logged.
type lineFunc func(line string)

func (l lineFunc) Write(line []byte) (int, error) {
	l(string(line))
	return len(line), nil
}

// TestRoundIsReportedBeforeItIsLogged checks that a log line about a round follows the
// condition in the health report.
func TestRoundIsReportedBeforeItIsLogged(t *testing.T) {
	r := newTestReports(Options{})
	var shown []string
	log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(lineFunc(func(string) {
		shown = append(shown, r.Health.Report().Status["IPv4"].LastError)
	}))))
	rounds := r.Sequence(Backend{Log: log})
	s := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil)
	for _, err := range []error{errRefused, nil} {
		rounds.Report(Round{Result: reconcile.Result{Snapshot: s, Outcome: reconcile.Outcome{Err: err}}})
	}
	kit.Same(t, "(-want +got)", []string{"refused", ""}, shown)
}

func TestReportsStartUnhealthy(t *testing.T) {
	kit.Check(t, !newTestReports(Options{Log: klog.Background()}).Health.Serving(), "healthy before the first round")
}
