// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/track"
	"kubeproxy/test/kit"
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
				if !strings.Contains(log.String(), w) {
					t.Errorf("%+v: %q is missing in %q", tt, w, log.String())
				}
			}
		})
	}
}
