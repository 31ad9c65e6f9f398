// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
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

// patience is the most that an alert waits before it fires, in seconds.
const patience = 10

var (
	waits     = regexp.MustCompile(`\bfor: (\d+)s\b`)
	minutes   = regexp.MustCompile(`\b(\d+)m\b`)
	threshold = regexp.MustCompile(`_seconds > (\d+)`)
)

// scaledRules returns the alerts of the chart, in which a minute lasts a second, and none
// waits longer than patience.
func scaledRules(t *testing.T) string {
	t.Helper()
	text := minutes.ReplaceAllString(chartFile(t, "rules.yaml"), "${1}s")
	text = replaceNumbers(t, text, waits, func(n int) string { return fmt.Sprintf("for: %ds", min(n, patience)) })
	return replaceNumbers(t, text, threshold, func(n int) string { return fmt.Sprintf("_seconds > %d", n/pace) })
}

// replaceNumbers replaces each match of a pattern by what its number makes of it.
func replaceNumbers(t *testing.T, text string, pattern *regexp.Regexp, by func(int) string) string {
	t.Helper()
	return pattern.ReplaceAllStringFunc(text, func(match string) string {
		n, err := strconv.Atoi(pattern.FindStringSubmatch(match)[1])
		if err != nil {
			t.Fatal(err)
		}
		return by(n)
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

// alertsOf returns the names of the alerts in rules, which have some.
func alertsOf(t *testing.T, rules string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^  - alert: (\w+)$`).FindAllStringSubmatch(rules, -1) {
		all[m[1]] = true
	}
	if len(all) == 0 {
		t.Fatalf("no alert is found in\n%s", rules)
	}
	return all
}
