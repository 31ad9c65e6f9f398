// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// A limit of a mode is reported for the affected address only. The rest of the Service is
// in force and does not count as failed.
func TestLimits(t *testing.T) {
	web := port("web", service.IPv4, 1)
	vip := service.Frontend{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}
	lb := service.Frontend{Kind: service.LoadBalancerIP, Addr: netip.MustParseAddr("203.0.113.5"), Port: 80}
	web.Frontends = []service.Frontend{vip, lb}
	about := func(err error) error {
		return errors.Join(&reconcile.PortError{Family: web.Family, Name: web.Name, Err: err})
	}
	no := func(lost ...service.Frontend) error {
		return errors.Join(&reconcile.UnsupportedError{Text: "cannot", Affected: lost})
	}
	for name, tt := range map[string]struct {
		err     error
		want    string
		reasons []Reason
		failing bool
	}{
		"an address": {about(no(lb)), "limited", []Reason{"", UnsupportedByMode}, true},
		"a detail":   {about(no()), "limited", []Reason{"", ""}, false},
		"another":    {about(no(vip)), "limited", []Reason{UnsupportedByMode, ""}, false},
		"for now":    {about(errors.Join(&reconcile.DegradedError{Err: errRefused}, no())), "limited", []Reason{"", ""}, false},
		"and worse":  {about(errors.Join(no(vip), errRefused)), "failed", []Reason{UnsupportedByMode, ""}, true},
		"none":       {nil, "programmed", []Reason{"", ""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newScenario()
			b.setWanted(web)
			b.round(service.IPv4, tt.err)
			b.round(service.IPv4, tt.err)
			s := b.All()[0]
			if string(s.State) != tt.want || b.Summary().States[s.State] != 1 || b.Failing("shop", "web") != tt.failing {
				t.Errorf("%s, failing %v; want %s, %v", s.State, b.Failing("shop", "web"), tt.want, tt.failing)
			}
			for i, f := range s.Ports[0].Frontends {
				if f.Reason != tt.reasons[i] {
					t.Errorf("%s: %q, want %q", f.Address, f.Reason, tt.reasons[i])
				}
			}
			if p := s.Ports[0]; (p.Since == nil) != (tt.want == "failed") || p.Since != nil && !p.Since.Equal(at(1)) {
				t.Errorf("in force since %v, want the end of the first round", p.Since)
			}
		})
	}
}

// Notes appear when they are in force, and disappear with them.
func TestNotes(t *testing.T) {
	b := newScenario()
	web := port("web", service.IPv4, 1)
	b.setWanted(web)
	round := func(n reconcile.Notes, err error) []string {
		b.Result(service.IPv4, reconcile.Result{Snapshot: b.want, Generation: 1, Start: begin, Took: time.Second, Outcome: reconcile.Outcome{Notes: n, Err: err}})
		return b.All()[0].Ports[0].Notes
	}
	some := reconcile.Notes{web.Name: {{Text: "no timeout"}, {Text: "no reject", Transient: true}}}
	if diff := cmp.Diff([]string{"no timeout", "no reject"}, round(some, nil)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := round(nil, errRefused); len(got) != 2 {
		t.Errorf("notes %q after a round that did nothing", got)
	}
	if got := round(nil, nil); got != nil {
		t.Errorf("notes %q, want none any more", got)
	}
}
