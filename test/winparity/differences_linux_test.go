// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winparity

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// The reasons of differences, as in docs/windows.md.
const (
	notReady     = "A pod that is not ready"
	lastEndpoint = "The last endpoint left"
	deleted      = "A deleted endpoint in a load balancer"
	targetPort   = "Another target port"
	sourceRanges = "Source ranges"
	// Of nightly lives.
	outage         = "HNS is away during a change"
	endpointFailed = "An endpoint of HNS cannot be created at once"
)

// externals are the addresses of the Service web to which policy Local applies.
var externals = []string{"198.51.100.5:80", "203.0.113.5:80", "node:30080"}

// differences are frontends that kube-proxy serves differently, or not at all, on some
// versions of HNS.
type differences []difference

type difference struct {
	reason   string
	frontend string // the end of a frontend
	ours     string // the endpoints; empty for none
}

// unexplained returns a line for each frontend with an unknown difference.
func (d differences) unexplained(known, ours map[string]string) string {
	keys := maps.Clone(known)
	maps.Copy(keys, ours)
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		want, who := known[key], "kube-proxy.exe has"
		for _, x := range d {
			if strings.HasSuffix(key, x.frontend) {
				want, who = x.ours, "right is"
			}
		}
		if ours[key] != want {
			lines = append(lines, fmt.Sprintf("%s: %s %q, ours %q", key, who, want, ours[key]))
		}
	}
	return strings.Join(lines, "\n")
}

// differ returns differences for frontends that have the endpoints ours, for one reason.
func differ(reason, ours string, frontends ...string) differences {
	var d differences
	for _, f := range frontends {
		d = append(d, difference{reason, f, ours})
	}
	return d
}

// on returns the endpoints of a load balancer in the form of programmed.
func on(target int, ips ...string) string {
	return fmt.Sprintf("%d on %s, distribution <nil>", target, strings.Join(ips, " "))
}

// TestReasonsAreExplained requires a row in docs/windows.md for each reason, and a reason
// for each row.
func TestReasonsAreExplained(t *testing.T) {
	text, err := os.ReadFile("../../docs/windows.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## Differences from kube-proxy.exe")
	table, _, _ = strings.Cut(table, "\n## ")
	used := map[string]bool{}
	for _, s := range slices.Concat(lifecycle(), rareLife()) {
		for _, d := range s.differ {
			used[d.reason] = true
		}
	}
	for reason := range used {
		if !strings.Contains(table, "\n| "+reason+" |") {
			t.Errorf("docs/windows.md has no row %q", reason)
		}
	}
	if rows := strings.Count(table, "\n| ") - 1; rows != len(used) {
		t.Errorf("docs/windows.md has %d rows, for %d reasons", rows, len(used))
	}
}
