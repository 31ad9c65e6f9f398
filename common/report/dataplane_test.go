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
// condition from before subscribe is reported, and that its start is logged once.
func TestDataplaneConditions(t *testing.T) {
	var log strings.Builder
	o := newTestReports(Options{Log: logr.FromSlogHandler(slog.NewTextHandler(io.Writer(&log), nil))})
	r := &DataplaneConditions{}
	hangs, ports := r.Setter("dataplane"), r.Setter("dynamic-ports")
	ports("4 are missing")
	o.ObserveDataplane(r)
	hangs("HNS has not answered")
	ports("5 are missing")
	conditions := o.Health.Report().Conditions
	if conditions["dataplane"] != "HNS has not answered" || conditions["dynamic-ports"] != "5 are missing" {
		t.Errorf("conditions %v", conditions)
	}
	hangs("")
	if conditions = o.Health.Report().Conditions; len(conditions) != 1 || conditions["dynamic-ports"] == "" {
		t.Errorf("conditions %v", conditions)
	}
	if n := strings.Count(log.String(), "Warning: "); n != 2 || strings.Contains(log.String(), "5 are") {
		t.Errorf("logged:\n%s", log.String())
	}
	ports("")
	if conditions = o.Health.Report().Conditions; len(conditions) != 0 {
		t.Errorf("conditions %v", conditions)
	}
}
