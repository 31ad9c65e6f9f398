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
)

// The log says how long connections of endpoints that left may go on, and
// when that was over for some.
func TestDrainsAreTold(t *testing.T) {
	var out bytes.Buffer
	at := func(v int) context.Context {
		return klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out), textlogger.Verbosity(v))))
	}
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	apply(t, b, snapshot(web(0, 3, service.TCP), web(1, 2, service.UDP)))
	hold(k, 3)
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
		{1, 0, "", "keep"}, // it was said
		{2, 0, "", "keep"},
		{1, 2, fmt.Sprintf(keep, 1), "lost"},
		{1, 0, lost, "keep"},
	} {
		if i == 4 {
			k.clock = k.clock.Add(DrainBound)
		}
		out.Reset()
		less := snapshot(web(0, c.left, service.TCP), web(1, 1, service.UDP))
		if err := planOf(t, b, less).Apply(at(c.verbosity)); err != nil {
			t.Fatal(err)
		}
		if s := out.String(); !strings.Contains(s, c.says) || strings.Contains(s, c.silent) {
			t.Errorf("%d: logged %q, want %q", i, s, c.says)
		}
	}
}
