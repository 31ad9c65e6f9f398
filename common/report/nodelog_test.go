// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/track"
)

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
			var log bytes.Buffer
			l := &nodeLog{log: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))), name: "node-x"}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			sources := NewManifestSources()
			sources.api = tt.api
			l.warnIfUnknown(ctx, sources, track.New(track.Options{NodeName: "node-x", NodePortsPrimary: tt.primary}))
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
