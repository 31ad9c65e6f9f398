// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// TestDrainingIsLogged checks that the log contains how long connections of removed
// endpoints may continue, and when some were cut off.
func TestDrainingIsLogged(t *testing.T) {
	var out bytes.Buffer
	at := func(v int) context.Context {
		return klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out), textlogger.Verbosity(v))))
	}
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	apply(t, b, snapshot(web(0, 3, service.TCP), web(1, 2, service.UDP)))
	setConns(k, 3)
	const (
		keep = `"Endpoints that left keep their connections until these end" destinations=%d atMost="1h0m0s"`
		lost = `"Endpoints that left a while ago lost the connections that they still had" connections=6 after="1h0m0s"`
	)
	for i, c := range []struct {
		left         int // endpoints of TCP
		verbosity    int
		says, silent string
	}{
		{2, 0, fmt.Sprintf(keep, 1), "lost"},
		{1, 0, "", "keep"}, // already logged
		{2, 0, "", "keep"},
		{1, 2, fmt.Sprintf(keep, 1), "lost"},
		{1, 0, lost, "keep"},
	} {
		if i == 4 {
			k.clock = k.clock.Add(DrainTimeout)
		}
		out.Reset()
		less := snapshot(web(0, c.left, service.TCP), web(1, 1, service.UDP))
		if err := planOf(t, b, less).Apply(at(c.verbosity)).Err; err != nil {
			t.Fatal(err)
		}
		if s := out.String(); !strings.Contains(s, c.says) || strings.Contains(s, c.silent) {
			t.Errorf("%d: logged %q, want %q", i, s, c.says)
		}
	}
}

// TestDrainingIsLoggedAfterRestart checks that a process that finds draining
// destinations logs them, and how long they may drain from now on, although it has
// nothing else to do.
func TestDrainingIsLoggedAfterRestart(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	apply(t, b, snapshot(web(0, 3, service.TCP)))
	setConns(k, 3)
	less := snapshot(web(0, 1, service.TCP))
	apply(t, b, less)
	logger, out := kit.NewLog(0)
	ctx := klog.NewContext(t.Context(), logger)
	b = newBackend(service.IPv4, k, Options{})
	view, err := b.view(ctx, less)
	if err != nil {
		t.Fatal(err)
	}
	b.rules = &fakeRules{held: view}
	for range 2 {
		if p, err := b.Plan(ctx, less); err != nil || !p.Empty() {
			t.Fatalf("Plan: %v, want nothing to do:\n%s", err, generate.Text(p))
		}
	}
	const want = `"Endpoints that left keep their connections until these end" destinations=2 atMost="1h0m0s"`
	if s := out.String(); !strings.Contains(s, want) || strings.Count(s, "\n") != 1 {
		t.Errorf("logged %q, want %q once", s, want)
	}
}
