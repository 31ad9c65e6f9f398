// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLinks checks that each topic leads to a heading of a document, and is complete.
func TestLinks(t *testing.T) {
	dropped := regexp.MustCompile("[^a-z0-9_ -]")
	headings := map[string]bool{}
	for _, name := range []string{"acceleration.md", "modes.md", "troubleshooting.md", "windows.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if level, heading, is := strings.Cut(strings.TrimSpace(line), " "); is && strings.Trim(level, "#") == "" {
				anchor := strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
				headings["docs/"+name+"#"+anchor] = true
			}
		}
	}
	orders := map[int]Topic{}
	for topic, about := range topics {
		if !headings[topic.Link()] {
			t.Errorf("the link of %s leads to no heading: %s", topic, topic.Link())
		}
		if strings.ContainsAny(string(topic), " _ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			t.Errorf("%s: want lower case and hyphens", topic)
		}
		if other, taken := orders[about.order]; taken || about.why == "" || about.severity == "" {
			t.Errorf("%s: order of %q, why %q, severity %q", topic, other, about.why, about.severity)
		}
		orders[about.order] = topic
	}
}
