// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"strings"
	"testing"
	"time"

	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slice returns an EndpointSlice with an endpoint on each of some nodes. A node with a
// minus has one that is not ready.
func slice(service string, family discovery.AddressType, nodes ...string) discovery.EndpointSlice {
	s := discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discovery.LabelServiceName: service}}, AddressType: family}
	for _, n := range nodes {
		name := strings.TrimPrefix(n, "-")
		ready := name == n
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{NodeName: &name, Conditions: discovery.EndpointConditions{Ready: &ready}})
	}
	return s
}

// TestReady checks which endpoints a client can go to.
func TestReachable(t *testing.T) {
	const v4, v6 = discovery.AddressTypeIPv4, discovery.AddressTypeIPv6
	unknown := slice("web", v4, "n1")
	unknown.Endpoints[0].Conditions.Ready = nil
	serving, ended := slice("web", v4, "-n1"), slice("web", v4, "-n1")
	serving.Endpoints[0].Conditions.Terminating, serving.Endpoints[0].Conditions.Serving = new(true), new(true)
	ended.Endpoints[0].Conditions.Terminating, ended.Endpoints[0].Conditions.Serving = new(true), new(false)
	for name, c := range map[string]struct {
		slices []discovery.EndpointSlice
		to     reach
		want   bool
	}{
		"none":                       {nil, reach{service: "web", family: v4}, false},
		"one":                        {[]discovery.EndpointSlice{slice("web", v4, "-n1", "n2")}, reach{service: "web", family: v4}, true},
		"in the second slice":        {[]discovery.EndpointSlice{slice("web", v4, "-n1"), slice("web", v4, "n2")}, reach{service: "web", family: v4}, true},
		"one that is not ready":      {[]discovery.EndpointSlice{slice("web", v4, "-n1")}, reach{service: "web", family: v4}, false},
		"one that is not said to be": {[]discovery.EndpointSlice{unknown}, reach{service: "web", family: v4}, true},
		"one that serves and ends":   {[]discovery.EndpointSlice{serving}, reach{service: "web", family: v4}, true},
		"one that only ends":         {[]discovery.EndpointSlice{ended}, reach{service: "web", family: v4}, false},
		"of another Service":         {[]discovery.EndpointSlice{slice("local", v4, "n1")}, reach{service: "web", family: v4}, false},
		"of the other family":        {[]discovery.EndpointSlice{slice("web", v6, "n1")}, reach{service: "web", family: v4}, false},
		"on the node":                {[]discovery.EndpointSlice{slice("local", v4, "-n1", "n2")}, reach{"local", v4, "n2"}, true},
		"on another node":            {[]discovery.EndpointSlice{slice("local", v4, "-n1", "n2")}, reach{"local", v4, "n1"}, false},
	} {
		r := readiness{now: map[string]discovery.EndpointSlice{}}
		for i, s := range c.slices {
			r.now[strings.Repeat("x", i)] = s
		}
		if got := r.reachable(c.to); got != c.want {
			t.Errorf("%s: reachable %t, want %t", name, got, c.want)
		}
	}
}

// TestExplainLosses checks which losses count as those of outages, and what the page says
// of them.
func TestExplainLosses(t *testing.T) {
	to := reach{service: "web", family: discovery.AddressTypeIPv4}
	r := readiness{ended: make(chan struct{}), outages: map[reach][]outage{to: nil}}
	close(r.ended)
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	up := map[string]discovery.EndpointSlice{"": slice("web", to.family, "n1")}
	for _, step := range []struct {
		at  float64
		now map[string]discovery.EndpointSlice
	}{{0, up}, {10, nil}, {12, nil}, {13, up}, {14, up}, {30, nil}, {30.5, up}} {
		r.now = step.now
		r.note(at(step.at))
	}
	f := Flow{Name: "a", Counts: Counts{New: 9, NewLost: 6, Kinds: map[string]int{"new: timeout": 6}}}
	for _, s := range []float64{5, 9.5, 11, 13.5, 20, 31} {
		f.LostAt = append(f.LostAt, at(s))
	}
	r.explain(&f, to)
	if f.Unready != 3500*time.Millisecond || f.LostUnready != 4 || f.LostAt != nil {
		t.Errorf("without a ready endpoint for %s, lost %d then, times kept: %t; want 3.5s, 4 and false", f.Unready, f.LostUnready, f.LostAt != nil)
	}
	d := Document{Changes: []Change{{Name: "api", About: "away", Flows: []Flow{f, {Name: "b", Unready: time.Hour}}}}}
	if want := " (4 while the API server named no endpoint that the client could go to, for up to 3.5s): "; !strings.Contains(d.Page(), want) {
		t.Errorf("want %q in the page:\n%s", want, d.Page())
	}
}

// TestOutageGoesOn checks that an outage which has no end yet counts.
func TestOutageGoesOn(t *testing.T) {
	to := reach{service: "web", family: discovery.AddressTypeIPv4}
	r := readiness{ended: make(chan struct{}), outages: map[reach][]outage{to: {{from: time.Now().Add(-time.Minute)}}}}
	close(r.ended)
	f := Flow{Counts: Counts{LostAt: []time.Time{time.Now()}}}
	if r.explain(&f, to); f.LostUnready != 1 || f.Unready < time.Minute {
		t.Errorf("without a ready endpoint for %s, lost %d then; want a minute and 1", f.Unready, f.LostUnready)
	}
}
