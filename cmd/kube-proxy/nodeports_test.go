// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// TestClosedNodePortsAreReported checks that the condition lasts as long as the node's
// addresses are unknown.
func TestClosedNodePortsAreReported(t *testing.T) {
	h, _ := newTestSink(t)
	b := &backend{mode: "nftables", family: service.IPv4}
	for pending, want := range map[bool]bool{true: true, false: false} {
		s := service.New(1, &service.Node{Name: "node-x", NodePortsPending: [2]bool{pending}}, []*service.Port{checkedPort(service.IPv4, "web", 0, 0)})
		h.reporter.recordRound(b, s, reconcile.Result{})
		text := h.reporter.health.Report().Conditions["node-port-addresses-IPv4"]
		if got := strings.Contains(text, "no IPv4 address answers NodePorts"); got != want {
			t.Errorf("pending %v: the condition is %q", pending, text)
		}
	}
}

// TestUnknownNodeIsLogged waits until nodeTimeout.
func TestUnknownNodeIsLogged(t *testing.T) {
	for _, tt := range []struct {
		api, primary bool
		want         []string
	}{
		{false, true, []string{"no manifest has a Node of this name", "NodePorts", "remedy"}},
		{false, false, nil},
		{true, true, []string{"API server has not told of the Node", "NodePorts"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			l := &nodeLog{log: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))), name: "node-x"}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			l.warnIfUnknown(ctx, newSourceStatus(tt.api), track.New(track.Options{NodeName: "node-x", NodePortsPrimary: tt.primary}))
			if (log.Len() > 0) != (tt.want != nil) {
				t.Errorf("%+v: logged %q", tt, log.String())
			}
			for _, w := range tt.want {
				if !strings.Contains(log.String(), w) {
					t.Errorf("%+v: %q is missing in %q", tt, w, log.String())
				}
			}
		})
	}
}
