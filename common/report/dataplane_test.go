// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
)

// TestDataplaneConditions checks that each condition begins and ends by itself, that a
// condition from before ObserveDataplane is reported, and that its start is logged once,
// but each detail.
func TestDataplaneConditions(t *testing.T) {
	var log strings.Builder
	o := newTestReports(Options{Log: logr.FromSlogHandler(slog.NewTextHandler(io.Writer(&log), nil))})
	r := &DataplaneConditions{}
	hangs, ports, refuses := r.Setter("dataplane"), r.Setter("dynamic-ports"), r.DetailedSetter("relay")
	ports("4 are missing")
	refuses("clients are refused", "clients of ns/a are refused")
	o.ObserveDataplane(r)
	hangs("HNS has not answered")
	ports("5 are missing")
	conditions := o.Health.Report().Conditions
	if conditions["dataplane"] != "HNS has not answered" || conditions["dynamic-ports"] != "5 are missing" || conditions["relay"] != "clients of ns/a are refused" {
		t.Errorf("conditions %v", conditions)
	}
	hangs("")
	refuses("clients are refused", "clients of ns/a, ns/b are refused")
	refuses("", "")
	if conditions = o.Health.Report().Conditions; len(conditions) != 1 || conditions["dynamic-ports"] == "" {
		t.Errorf("conditions %v", conditions)
	}
	if n := strings.Count(log.String(), "Warning: "); n != 4 || strings.Contains(log.String(), "5 are") {
		t.Errorf("logged:\n%s", log.String())
	}
	ports("")
	if conditions = o.Health.Report().Conditions; len(conditions) != 0 {
		t.Errorf("conditions %v", conditions)
	}
}
