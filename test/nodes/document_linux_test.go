// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestUpdate checks that a newer result takes the place of the older one, and what the
// page says.
func TestUpdate(t *testing.T) {
	dir := t.TempDir()
	file, page := filepath.Join(dir, "c.json"), filepath.Join(dir, "c.md")
	day := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, made := range []int{1, 10} {
		change := Change{Name: "2-roll", About: "rolled", Version: "v1", Kernel: "6.1", On: day, Flows: []Flow{
			{Name: "pod", Counts: Counts{New: made, NewLost: 2, Held: 5, Kinds: map[string]int{"new: timeout": 2}, FirstLost: day, Last: day.Add(time.Second)}},
			{Name: "node", Counts: Counts{New: 20}},
		}}
		if err := Update(file, page, &change); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| rolled | 30              | 2    | 5                     | 0      |", "- rolled, pod: 2 new: timeout, within 1s\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	if strings.Count(string(text), "| rolled ") != 1 {
		t.Errorf("want one row in\n%s", text)
	}
}
