// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// chartFile reads a file of the chart.
func chartFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "build", "chart", "files", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// pace is how much faster than in a cluster the alerts pass.
const pace = 60

var (
	minutes   = regexp.MustCompile(`\b(\d+)m\b`)
	threshold = regexp.MustCompile(`(_seconds > )(\d+)`)
)

// scaledRules returns the alerts of the chart, in which a minute lasts a second.
func scaledRules(t *testing.T) string {
	t.Helper()
	text := minutes.ReplaceAllString(chartFile(t, "rules.yaml"), "${1}s")
	return threshold.ReplaceAllStringFunc(text, func(s string) string {
		parts := threshold.FindStringSubmatch(s)
		n, err := strconv.Atoi(parts[2])
		if err != nil {
			t.Fatal(err)
		}
		return parts[1] + strconv.Itoa(n/pace)
	})
}

// metricsOf returns the metrics of the proxy that a text names.
func metricsOf(text string) map[string]bool {
	all := map[string]bool{}
	for _, name := range regexp.MustCompile(`\b(kubeproxy|process)_\w+`).FindAllString(text, -1) {
		all[name] = true
	}
	return all
}

// alertsOf returns the names of the alerts in rules.
func alertsOf(rules string) map[string]bool {
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^  - alert: (\w+)$`).FindAllStringSubmatch(rules, -1) {
		all[m[1]] = true
	}
	return all
}
