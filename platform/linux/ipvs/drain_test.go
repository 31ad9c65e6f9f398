// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/service"
)

// The log says how long connections of endpoints that left may go on, and
// when that was over for some.
func TestDrainsAreTold(t *testing.T) {
	var out bytes.Buffer
	log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out), textlogger.Verbosity(2)))
	ctx := klog.NewContext(t.Context(), log)
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	apply(t, b, snapshot(web(0, 3, service.TCP), web(1, 2, service.UDP)))
	hold(k, 3)
	less := snapshot(web(0, 1, service.TCP), web(1, 1, service.UDP))
	for _, c := range []struct{ says, silent string }{
		{`"Endpoints that left keep their connections until these end" destinations=2 atMost="1h0m0s"`, "lost"},
		{`"Endpoints that left a while ago lost the connections that they still had" connections=6 after="1h0m0s"`, "keep"},
	} {
		out.Reset()
		if err := planOf(t, b, less).Apply(ctx); err != nil {
			t.Fatal(err)
		}
		if s := out.String(); !strings.Contains(s, c.says) || strings.Contains(s, c.silent) {
			t.Errorf("logged %q, want %q", s, c.says)
		}
		k.clock = k.clock.Add(DrainBound)
	}
}
