// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLinks checks that each topic has a heading in the document, and each heading of that
// part a topic. A heading of one word in lower case is its own anchor.
func TestLinks(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(Document)))
	if err != nil {
		t.Fatal(err)
	}
	_, part, found := strings.Cut(string(text), "\n## What kube-proxy doctor finds\n")
	if !found {
		t.Fatal("the document has no part about doctor")
	}
	part, _, _ = strings.Cut(part, "\n## ")
	headings := map[Topic]bool{}
	for line := range strings.Lines(part) {
		if name, is := strings.CutPrefix(strings.TrimSpace(line), "### "); is {
			headings[Topic(name)] = true
		}
	}
	orders := map[int]Topic{}
	for topic, about := range topics {
		if !headings[topic] {
			t.Errorf("%s has no heading %q", Document, "### "+topic)
		}
		if want := Document + "#" + string(topic); topic.Link() != want || strings.ContainsAny(string(topic), " _ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			t.Errorf("link of %s: %s, want %s", topic, topic.Link(), want)
		}
		if other, taken := orders[about.order]; taken || about.why == "" || about.severity == "" {
			t.Errorf("%s: order of %q, why %q, severity %q", topic, other, about.why, about.severity)
		}
		orders[about.order] = topic
		delete(headings, topic)
	}
	for name := range headings {
		t.Errorf("heading %q is of no topic", name)
	}
}
