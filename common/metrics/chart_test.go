// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestChartMetrics checks that every metric that the alerts and the dashboard of the chart
// name exists.
func TestChartMetrics(t *testing.T) {
	known := map[string]bool{}
	for name, shape := range documented {
		known[name] = true
		if strings.HasPrefix(shape, "HISTOGRAM") {
			known[name+"_bucket"], known[name+"_sum"], known[name+"_count"] = true, true, true
		}
	}
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		text, err := os.ReadFile("../../build/chart/files/" + file)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`kubeproxy_\w+`).FindAllString(string(text), -1)
		if len(names) < 10 {
			t.Errorf("%s names %d metrics", file, len(names))
		}
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s: there is no metric %s", file, name)
			}
		}
	}
}
