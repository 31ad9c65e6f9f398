// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

func TestRoundLogger(t *testing.T) {
	log, b := kit.NewLog(2)
	r := newRoundLogger(log)
	now := time.Unix(0, 0)
	r.now = func() time.Time { return now }
	round := func(after time.Duration, res reconcile.Result) {
		now = now.Add(after)
		r.logRound(res)
	}
	broken := errors.New("no such device")
	port := &reconcile.PortError{Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Err: errors.New("too many")}
	round(0, reconcile.Result{Generation: 1, Changed: true, Took: time.Millisecond})
	round(time.Second, reconcile.Result{Generation: 1})
	round(time.Second, reconcile.Result{Generation: 2, Changed: true, Took: time.Millisecond})
	round(time.Second, reconcile.Result{Generation: 3, Outcome: reconcile.Outcome{Err: broken}})
	for range 70 {
		round(time.Second, reconcile.Result{Generation: 3, Outcome: reconcile.Outcome{Err: broken}})
	}
	round(time.Second, reconcile.Result{Generation: 4, Outcome: reconcile.Outcome{Err: port}})
	round(time.Second, reconcile.Result{Generation: 5, Outcome: reconcile.Outcome{Drift: []string{"a", "b"}}})
	round(time.Second, reconcile.Result{Generation: 5})
	want := []string{
		`I "Programmed" generation=1 took="1ms" changed=true`,
		`I "Programmed a change" generation=2 took="1ms"`,
		`E "Not everything could be programmed; trying again" err="no such device" generation=3`,
		`E "Not everything could be programmed; trying again" err="no such device" generation=3 repeated=60 failingFor="1m0s"`,
		`E "Not everything could be programmed; trying again" err="service port shop/web (tcp, IPv4): too many" generation=4 failedPorts=1`,
		`I "Others had altered our rules" changes=2 first="a; b"`,
		`I "Programmed again" generation=5 took="0s" failingFor="1m12s"`,
	}
	kit.Same(t, "log (-want +got)", want, kit.LogLines(b))
}

func TestLogCleanup(t *testing.T) {
	log, b := kit.NewLog(0)
	r := newRoundLogger(log)
	for _, err := range []error{nil, errors.New("a"), errors.New("a"), errors.New("b"), nil, nil, errors.New("b")} {
		r.logCleanup(err)
	}
	const failure = `E "Stale connections could not all be removed" err=`
	want := []string{failure + `"a"`, failure + `"b"`, `I "Stale connections are removed again"`, failure + `"b"`}
	kit.Same(t, "log (-want +got)", want, kit.LogLines(b))
}

// TestLogRepeatedDrift checks that a repeated change is logged once a minute, and another
// change at once, up to a bound.
func TestLogRepeatedDrift(t *testing.T) {
	log, b := kit.NewLog(0)
	r := newRoundLogger(log)
	now := time.Unix(0, 0)
	r.now = func() time.Time { return now }
	round := func(what string) {
		now = now.Add(time.Second)
		r.logDrift(reconcile.Result{DriftRounds: 1000, Outcome: reconcile.Outcome{Drift: []string{what}}})
	}
	for range 59 {
		round("a")
	}
	round("b")
	round("a")
	want := []string{
		`I "Others had altered our rules" changes=1 first="a" rounds=1000 notLogged=0`,
		`I "Others had altered our rules" changes=1 first="b" rounds=1000 notLogged=58`,
		`I "Others had altered our rules" changes=1 first="a" rounds=1000 notLogged=0`,
	}
	kit.Same(t, "the log (- want, + got)", want, kit.LogLines(b))
	b.Reset()
	for i := range 50 {
		round(strconv.Itoa(i))
	}
	n := len(kit.LogLines(b))
	kit.Check(t, n == maxLoggedDrift-1, "%d more lines within a minute, want %d", n, maxLoggedDrift-1)
}

// TestUnknownNodeIsLogged waits until nodeTimeout.
func TestUnknownNodeIsLogged(t *testing.T) {
	for _, tt := range []struct {
		api, primary bool
		want         []string
	}{
		{false, true, []string{"no manifest has a Node of this name", "NodePorts", "remedy"}},
		{false, false, nil},
		{true, true, []string{"API server has not sent the Node", "NodePorts"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			logger, log := kit.NewLog(0)
			l := &nodeLog{log: logger, name: "node-x"}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			sources := NewManifestSources()
			sources.api = tt.api
			l.warnIfUnknown(ctx, sources, track.New(track.Options{NodeName: "node-x", NodePortsPrimary: tt.primary}))
			if (log.Len() > 0) != (tt.want != nil) {
				t.Errorf("%+v: logged %q", tt, log.String())
			}
			for _, w := range tt.want {
				kit.Check(t, strings.Contains(log.String(), w), "%+v: %q is missing in %q", tt, w, log.String())
			}
		})
	}
}
