// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
)

// TestCountTraffic checks that the flag takes precedence over the field, and that a
// written configuration has the field only if traffic is counted.
func TestCountTraffic(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		args []string
		want bool
	}{
		"neither":  {"", nil, false},
		"file":     {"countTraffic: true\n", nil, true},
		"flag":     {"", []string{"--count-traffic"}, true},
		"both":     {"countTraffic: true\n", []string{"--count-traffic=false"}, false},
		"null":     {"countTraffic: null\n", nil, false},
		"the same": {"countTraffic: true\n", []string{"--count-traffic"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustLoad(t, Linux, tt.body, tt.args...)
			if overrides := len(c.Overrides); c.CountTraffic != tt.want || (name == "both") != (overrides == 1) || len(c.Warnings) > 0 {
				t.Errorf("counts: %v, want %v; overrides %v, warnings %v", c.CountTraffic, tt.want, c.Overrides, c.Warnings)
			}
			text := written(c)
			file, err := Parse("again", []byte(text))
			if err != nil || file.CountTraffic != tt.want || strings.Contains(text, "countTraffic") != tt.want {
				t.Errorf("written: %v, %v, %v, want %v", err, file.CountTraffic, text, tt.want)
			}
		})
	}
	if _, err := load(t, Linux, "countTraffic: 7\n"); err == nil || !strings.Contains(err.Error(), "countTraffic") {
		t.Errorf("countTraffic: 7 gives %v", err)
	}
	on, off := mustLoad(t, Linux, "countTraffic: true\n"), mustLoad(t, Linux, "")
	if c := Diff(off, on, in(NFTables)); len(c) != 1 || c[0].String() != "countTraffic: false -> true" || c[0].Effect != Restart {
		t.Errorf("Diff = %v", c)
	}
	windows := mustLoad(t, Windows, "countTraffic: true\n")
	if n := windows.Notes; len(n) != 1 || !strings.Contains(n[0].Text, "HNS does not count") {
		t.Errorf("notes %v, want that HNS does not count", n)
	}
	file, err := Parse("f", []byte(head+"countTrafic: true\n"))
	if err != nil || len(file.Warnings) != 1 || !strings.Contains(file.Warnings[0].Text, "countTraffic") {
		t.Errorf("%v, %v: want the name that was meant", err, file.Warnings)
	}
}
