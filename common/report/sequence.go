// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
)

// Backend has the functions of a backend that receive its rounds. Those that are nil are left out.
type Backend struct {
	Log klog.Logger
	// Takeover receives each round.
	Takeover func(reconcile.Result)
	// InForce is called after each round whose rules are in force, except for single
	// ports.
	InForce func()
	// CleanConntrack deletes the conntrack entries that a round made stale, and returns
	// how many these were.
	CleanConntrack func(reconcile.Result) (flows int, err error)
}

// Sequence returns the reporters that receive the rounds of b, in this order. Health
// comes first, and the log follows every condition, so that a reader of the log finds the
// condition. Cleanup of conntrack entries comes last, as it takes long.
func (r *Reports) Sequence(b Backend) Sequence {
	log := newRoundLogger(b.Log)
	inForce := Round.InForce
	s := Sequence{
		{"health", nil, Func(func(x Round) { r.Health.Result(x.Family, x.Result) })},
		{"metrics", nil, Func(r.countRound)},
		{"services", nil, Func(func(x Round) { r.Services.Result(x.Family, x.Result) })},
		{"events", nil, r.Events},
		{"drift", nil, r.OtherProxies},
		{"limits", inForce, r.limits},
		{"degraded", inForce, &degraded{health: r.Health, log: b.Log}},
		{"unavailable", inForce, &unavailable{health: r.Health, log: r.log}},
		{"latency", inForce, Func(r.countInForce)},
		{"checks", inForce, r.checks},
		{"pods", inForce, r.pods},
		{"nodeports", inForce, nodePorts{r.Health}},
		{"problems", inForce, Func(r.reportProblems)},
		{"log", nil, log},
	}
	if b.Takeover != nil {
		s = append(s, Step{"takeover", nil, Func(func(x Round) { b.Takeover(x.Result) })})
	}
	if b.InForce != nil {
		s = append(s, Step{"start", inForce, Func(func(Round) { b.InForce() })})
	}
	if b.CleanConntrack != nil {
		s = append(s, Step{"conntrack", Round.partly, Func(func(x Round) { r.cleanConntrack(b, x, log) })})
	}
	return s
}

func (r *Reports) countRound(x Round) {
	r.Metrics.Result(metrics.Backend{Mode: x.Mode, Family: x.Family}, x.Result)
}

func (r *Reports) countInForce(x Round) {
	r.Metrics.ChangesSynced()
	for _, after := range r.latency.takeProgrammed(x.Family, x.Start, x.Start.Add(x.Took)) {
		r.Metrics.InForce(x.Family, after)
	}
}

func (r *Reports) cleanConntrack(b Backend, x Round, log *roundLogger) {
	start := time.Now()
	flows, err := b.CleanConntrack(x.Result)
	r.Metrics.Conntrack(x.Family, time.Since(start), flows)
	text := ""
	if err != nil {
		text = "stale connections are not removed, so UDP clients stay with endpoints that left until they pause: " + err.Error()
	}
	r.Health.SetCondition("stale-connections-"+x.Family.String(), text)
	log.logCleanup(err)
}
