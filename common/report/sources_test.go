// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/source"
)

func TestSourceStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewSources()
		c.RecordContact("services")
		c.RecordError(errors.New("refused"))
		time.Sleep(staleAfter + time.Second)
		c.RecordContact("endpointslices")
		got := map[string][2]bool{}
		for _, s := range c.report() {
			got[s.Name] = [2]bool{s.Synced, s.Stale}
			if s.Err != "" {
				t.Errorf("%s: error %q outlives a sign of life", s.Name, s.Err)
			}
		}
		want := map[string][2]bool{"services": {true, true}, "endpointslices": {true, false}, "nodes": {false, false}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("synced, stale (-want +got):\n%s", diff)
		}
	})
}

// TestOptionalSources checks that an optional kind is no source until it was read. After
// that its latest error counts.
func TestOptionalSources(t *testing.T) {
	c := NewSources()
	refused := &source.ReadError{Kind: "servicecidrs", Err: errors.New("refused")}
	hidden := &source.ReadError{Kind: "servicecidrs", Optional: true, Err: errors.New("hidden")}
	shown := func() string {
		for _, s := range c.report() {
			if s.Name == "servicecidrs" {
				return s.Err
			}
		}
		return "no source"
	}
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() { c.RecordError(refused) }, "watch servicecidrs at the API server: refused"},
		{func() { c.RecordError(hidden) }, "no source"},
		{func() { c.RecordContact("servicecidrs") }, ""},
		{func() { c.RecordError(refused) }, "watch servicecidrs at the API server: refused"},
		{func() { c.RecordError(hidden) }, "watch servicecidrs at the API server: hidden"},
	} {
		if step.do(); shown() != step.want {
			t.Errorf("step %d: %q, want %q", i, shown(), step.want)
		}
	}
}

// TestSourceFaultsByObject breaks two manifests and repairs them one by one.
func TestSourceFaultsByObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewManifestSources()
		shown := func() string {
			s := c.report()[0]
			return fmt.Sprintf("%s %d %q", s.Name, s.Faults, s.Err)
		}
		for i, step := range []struct {
			object, err, want string
		}{
			{"a.yaml", "bad a", `manifests 1 "bad a"`},
			{"b.yaml", "bad b", `manifests 2 "bad b"`},
			{"a.yaml", "worse a", `manifests 2 "worse a"`},
			{"a.yaml", "", `manifests 1 "bad b"`},
			{"b.yaml", "", `manifests 0 ""`},
		} {
			f := source.Fault{Object: step.object}
			if step.err != "" {
				f.Err = errors.New(step.err)
			}
			c.RecordFault(ManifestSource, f)
			if shown() != step.want {
				t.Errorf("step %d: %s, want %s", i, shown(), step.want)
			}
			time.Sleep(time.Second)
		}
		begin := time.Now()
		c.RecordFault(ManifestSource, source.Fault{Object: "a.yaml", Err: errors.New("bad a")})
		time.Sleep(time.Minute)
		if since := c.RecordFault(ManifestSource, source.Fault{Object: "a.yaml"}); !since.Equal(begin) {
			t.Errorf("over since %v, want %v", since, begin)
		}
	})
}

// TestManifestsNeverRead wants manifests not to be synced while one was never readable.
func TestManifestsNeverRead(t *testing.T) {
	c := NewManifestSources()
	c.setSynced()
	for _, never := range []int{1, 0} {
		c.ManifestsRead(time.Second, never)
		if s := c.report()[0]; s.Synced != (never == 0) {
			t.Errorf("with %d files that were never readable: %+v", never, s)
		}
	}
}

// TestManifestsGoStale leaves the manifests unread for two periods.
func TestManifestsGoStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewManifestSources()
		const poll = 10 * time.Second
		c.ManifestsRead(poll, 0)
		c.setSynced()
		time.Sleep(2 * poll)
		if s := c.report()[0]; s.Stale || !s.Synced || s.LastContact.IsZero() {
			t.Errorf("after two periods: %+v, want it not stale yet", s)
		}
		time.Sleep(time.Second)
		if s := c.report()[0]; !s.Stale {
			t.Errorf("after more than two periods: %+v, want it stale", s)
		}
		c.ManifestsRead(poll, 0)
		if s := c.report()[0]; s.Stale {
			t.Errorf("after it was looked at again: %+v, want it not stale", s)
		}
	})
}
