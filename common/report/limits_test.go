// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/health"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

func noRanges(f service.Family, name string) *reconcile.PortError {
	return portError(f, name, errors.Join(&reconcile.UnsupportedError{Text: "no source ranges"}))
}

func noted(name, text string) reconcile.Notes {
	passing := reconcile.Note{Text: "no endpoints", Transient: true}
	return reconcile.Notes{{Namespace: "shop", Name: name, Port: "http", Protocol: service.TCP}: {{Text: text}, passing}}
}

// TestEventsOfLimits checks that a limit of a mode is one Event, however many families
// and nodes report it, and that a temporary limit is none.
func TestEventsOfLimits(t *testing.T) {
	got := recordedEvents(t, func(h *Events) {
		l := &limits{events: h, health: health.New(health.Options{}), mode: "kernelspace"}
		round := func(f service.Family, r reconcile.Result) {
			r.Generation = 1
			h.Report(Round{Family: f, Result: r})
			l.Report(Round{Family: f, Result: r})
			time.Sleep(2 * time.Minute)
		}
		h.setService(newService("web", "u1"))
		h.setService(newService("old", "u2"))
		for _, f := range service.Families {
			round(f, reconcile.Result{Outcome: reconcile.Outcome{Notes: noted("old", "no timeout"), Err: errors.Join(noRanges(f, "web"))}})
		}
		round(v4, reconcile.Result{Outcome: reconcile.Outcome{Notes: noted("old", "no timeout"), Err: errors.Join(noRanges(v4, "web"), portError(v4, "old", errRefused))}})
		want := "mode kernelspace cannot do all that Services ask for, see kube-proxy status NAMESPACE/NAME: shop/old, shop/web"
		if text := l.health.Report().Conditions["unsupported"]; text != want {
			t.Errorf("condition %q, want %q", text, want)
		}
		h.setService(newService("old", "u3")) // another Service of the same name
		time.Sleep(2 * time.Minute)
		for _, f := range service.Families {
			round(f, reconcile.Result{})
		}
		if c := l.health.Report().Conditions; len(c) > 0 {
			t.Errorf("conditions %v, want none", c)
		}
	})
	want := []string{
		"Warning ServiceLimited old u2: Limits of mode kernelspace: port http/tcp: no timeout",
		"Warning ServiceLimited web u1: Limits of mode kernelspace: port http/tcp: no source ranges",
		"Warning ServiceNotProgrammed old u2: Node node-a could not program port http/tcp, IPv4: refused",
		"Warning ServiceLimited old u3: Limits of mode kernelspace: port http/tcp: no timeout",
	}
	if len(got) > 2 && strings.Contains(got[0], " web ") { // the order of equal waits is random
		got[0], got[1] = got[1], got[0]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A difference from what a Service asks for is logged when it begins.
func TestLogOfLimits(t *testing.T) {
	log, b := kit.NewLog(0)
	l := &limits{log: log, health: health.New(health.Options{}), mode: "nftables"}
	for _, notes := range []reconcile.Notes{noted("web", "no SCTP"), noted("web", "no SCTP"), nil} {
		l.Report(Round{Result: reconcile.Result{Outcome: reconcile.Outcome{Notes: notes}}})
	}
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `service="shop/web" lacks="Limits of mode nftables: port http/tcp: no SCTP"`) {
		t.Errorf("logged:\n%s", got)
	}
}

// A limit is logged once, and is no failure.
func TestLogLimits(t *testing.T) {
	log, b := kit.NewLog(0)
	r := newRoundLogger(log)
	limit := noRanges(v4, "web")
	for _, err := range []error{limit, limit, errors.Join(limit, errRefused), limit, nil, limit} {
		r.logRound(reconcile.Result{Generation: 1, Outcome: reconcile.Outcome{Err: err}})
	}
	var got []string
	for _, line := range kit.LogLines(b) {
		if text, _, ok := strings.Cut(line, "\" "); ok { // not further lines of an error
			got = append(got, text)
		}
	}
	limited := `E "Services ask for what this mode cannot do; the rest of them is in force`
	want := []string{
		`I "Programmed`, limited, `E "Not everything could be programmed; trying again`, `I "Programmed again`, limited,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
