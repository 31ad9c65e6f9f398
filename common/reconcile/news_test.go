// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"context"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// tell lets time pass, and has the Loop hear of news, which are some if another
// snapshot is there by then.
func (b *bench) tell(d time.Duration, some bool) {
	b.pass(d)
	if some {
		b.latest = b.latest.With(b.latest.Generation+1, b.latest.Node, nil)
	}
	b.News()
	b.pass(0)
}

func TestNews(t *testing.T) {
	const sec = time.Second
	for name, tt := range map[string]struct {
		set   func(*bench)
		story func(*bench)
		want  []time.Duration
	}{
		"of something": {nil, func(b *bench) { b.tell(10*sec, true) }, []time.Duration{0, 10 * sec}},
		"of nothing":   {nil, func(b *bench) { b.tell(10*sec, false) }, []time.Duration{0}},
		"of nothing, and a kick": {nil, func(b *bench) {
			b.pass(500 * ms)
			b.News()
			b.Kick()
			b.pass(10 * sec)
		}, []time.Duration{0, sec}},
		"of nothing, while something failed": {
			func(b *bench) { b.applies = []error{errRefused, errRefused} },
			func(b *bench) { b.tell(1500*ms, false); b.pass(sec) },
			[]time.Duration{0, 1500 * ms},
		},
		"of the first snapshot": {
			func(b *bench) { b.latest = nil },
			func(b *bench) {
				b.pass(sec)
				b.latest = service.New(1, &service.Node{NodePorts: service.Everywhere()}, nil)
				b.tell(0, false)
				b.pass(time.Hour)
			},
			[]time.Duration{sec, sec + time.Hour},
		},
		"come during a round and are in it": {
			func(b *bench) { b.takes = 3 * sec },
			func(b *bench) { b.tell(2*sec, false); b.pass(time.Minute) },
			[]time.Duration{0},
		},
		"do not put the look at what others did off": {nil, func(b *bench) {
			b.tell(40*time.Minute, true)
			b.tell(10*time.Minute, false)
			b.pass(70 * time.Minute)
		}, []time.Duration{0, 40 * time.Minute, time.Hour, 2 * time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, tt.set, func(b *bench) { tt.story(b); b.at(tt.want...) })
		})
	}
}

// wholly has plans that say whether they compare all there is.
type wholly struct {
	*bench
	whole bool
}

type wholePlan struct {
	fakePlan
	whole bool
}

func (p wholePlan) Whole() bool { return p.whole }

func (w *wholly) Plan(ctx context.Context, want *service.Snapshot) (Plan, error) {
	p, err := w.bench.Plan(ctx, want)
	return wholePlan{p.(fakePlan), w.whole}, err
}

// A round that found out what others did puts the next such one off, whatever
// brought it.
func TestWholeRoundsPutTheResyncOff(t *testing.T) {
	w := &wholly{whole: true}
	run(t, func(b *bench) { w.bench, b.Backend = b, w }, func(b *bench) {
		b.tell(40*time.Minute, true)
		b.pass(61 * time.Minute)
		b.at(0, 40*time.Minute, 100*time.Minute)
	})
}

// Who asks how it goes is told what holds, and that it holds now.
func TestNewsOfNothingAreReported(t *testing.T) {
	run(t, func(b *bench) {
		b.drift = []string{"x"}
		b.applies = []error{&PortError{Err: &Unmet{Text: "never"}}}
	}, func(b *bench) {
		b.tell(10*time.Second, false)
		if len(b.results) != 2 {
			t.Fatalf("%d results, want 2", len(b.results))
		}
		r := b.results[1]
		if at := r.Start.Sub(b.begin); at != 10*time.Second || r.Took != 0 || r.Changed || len(r.Drift)+len(r.Removed) > 0 || r.Generation != 1 || !Unsupported(r.Err) {
			t.Errorf("after %s: %+v", at, r)
		}
	})
}
