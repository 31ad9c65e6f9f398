// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"
)

// pairs are the medians that targets had in each round, by part and name of a target. The
// part "made." is until a connection was established, and "" until it was answered.
type pairs map[string][]float64

// takeTurns measures targets in a number of rounds. Each round has an order of its own.
func takeTurns(targets []target, rounds int, long time.Duration) (pairs, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	// With spare processors, the runtime does not take the processor from a thread that
	// waits in the kernel.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 4))
	for _, x := range targets {
		if err := x.answers(); err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
	}
	p := pairs{}
	for range rounds {
		for _, i := range rand.Perm(len(targets)) {
			x := targets[i]
			s, err := x.burst(long)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", x.name, err)
			}
			p["made."+x.name] = append(p["made."+x.name], quantile(s.made, 0.5))
			p[x.name] = append(p[x.name], quantile(s.answered, 0.5))
		}
	}
	return p, nil
}

// ratios returns the ratio of a target's median to another's in each round, sorted.
func (p pairs) ratios(part, name, base string) []float64 {
	var all []float64
	for i, v := range p[part+name] {
		all = append(all, v/p[part+base][i])
	}
	slices.Sort(all)
	return all
}

// set records for a target the median of the rounds' medians, and of their ratios to those
// of base.
func (p pairs) set(f *figures, name, base string) {
	for _, part := range []string{"made.", ""} {
		f.set("connect."+part+name, quantile(slices.Clone(p[part+name]), 0.5))
		f.spread("connect."+part+name+".ratio", p.ratios(part, name, base))
	}
}

// What follows the name of a metric for the limits between which it is.
const (
	lowEnd  = ".low"
	highEnd = ".high"
)

// spread records the median of sorted, and its limits.
func (f *figures) spread(metric string, sorted []float64) {
	low, high := interval(sorted)
	f.set(metric, quantile(sorted, 0.5))
	f.set(metric+lowEnd, low)
	f.set(metric+highEnd, high)
}

// interval returns the limits between which the true median is in 95 of 100 cases, if
// sorted is a sample. It makes no assumption on the distribution: the number of values
// below the true median is that of heads among as many coins. The normal distribution
// stands for theirs, which suits twenty values and more.
func interval(sorted []float64) (low, high float64) {
	n := float64(len(sorted))
	off := int(math.Floor(n/2-1.96*math.Sqrt(n)/2)) - 1
	if off < 0 {
		return math.NaN(), math.NaN()
	}
	return sorted[off], sorted[len(sorted)-1-off]
}

// joinCgroup moves this process into x's cgroup. A socket belongs to the cgroup of the
// process that makes it.
func (x target) joinCgroup() error {
	if x.cgroup == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(x.cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}
