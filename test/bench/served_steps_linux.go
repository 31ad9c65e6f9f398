// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"
)

// singles changes one endpoint at a time, each after a pause.
func (s *served) singles(ctx context.Context, f *figures) error {
	s.logf("single changes")
	var took []time.Duration
	next := time.Now()
	for i, end := 0, time.Now().Add(servedLimit); i < s.samples && time.Now().Before(end); i++ {
		pause(ctx, time.Until(next))
		next = time.Now().Add(spacing)
		if err := s.workload.ReplaceOne(ctx, i*7919); err != nil {
			return err
		}
		one, err := s.inForce(ctx, "a single change")
		if err != nil {
			return err
		}
		took = append(took, one...)
	}
	s.spread(f, "served.single", took)
	f.set("served.single.count", float64(len(took)))
	return nil
}

// atOnce creates many Services as fast as the API server can.
func (s *served) atOnce(ctx context.Context, f *figures) error {
	s.logf("Services made at once")
	began := time.Now()
	if err := s.workload.Grow(ctx, s.together); err != nil {
		return err
	}
	written := time.Since(began)
	took, err := s.inForce(ctx, "Services made at once")
	if err != nil {
		return err
	}
	s.spread(f, "served.together", took)
	f.seconds("served.together.written", written)
	return nil
}

// steady changes endpoints at a rate.
func (s *served) steady(ctx context.Context, f *figures) error {
	s.logf("steady changes")
	cpu := s.process.usedCPU()
	n, err := s.workload.ReplaceAtRate(ctx, s.rate, s.long)
	if err != nil {
		return err
	}
	took, err := s.inForce(ctx, "steady changes")
	if err != nil {
		return err
	}
	f.seconds("served.steady.cpu", (s.process.usedCPU()-cpu)/time.Duration(n))
	s.spread(f, "served.steady", took)
	f.set("served.steady.rate", float64(n)/s.long.Seconds())
	return nil
}

// memory changes everything, again and again.
func (s *served) memory(ctx context.Context, f *figures) error {
	s.logf("memory")
	if err := s.workload.Grow(ctx, max(0, s.most-s.workload.Len())); err != nil {
		return err
	}
	if _, err := s.inForce(ctx, "the last Services"); err != nil {
		return err
	}
	first, err := s.resident(ctx)
	if err != nil {
		return err
	}
	f.set("served.rss", first)
	last := first
	for i := range s.churns {
		if last, err = s.churn(ctx); err != nil {
			return err
		}
		if i == 0 { // by then everything has been done once
			first = last
		}
	}
	peak, err := peakRSS(s.process.pid())
	f.set("served.growth", last/first-1)
	f.set("served.peak", peak)
	f.set("served.after", last)
	return err
}

// churn changes everything once and returns the memory afterwards.
func (s *served) churn(ctx context.Context) (float64, error) {
	if err := s.workload.ReplaceAll(ctx); err != nil {
		return 0, err
	}
	if _, err := s.inForce(ctx, "a change of everything"); err != nil {
		return 0, err
	}
	return s.resident(ctx)
}

// resident returns the resident set of the program when it is idle.
func (s *served) resident(ctx context.Context) (float64, error) {
	pause(ctx, rest)
	kB, err := field("/proc/"+s.process.pid()+"/status", "VmRSS:")
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", s.Program.Name, err)
	}
	return kB * 1024, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(max(d, 0)):
	}
}
