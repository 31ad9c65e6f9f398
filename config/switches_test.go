// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
)

// TestSwitches checks that a flag takes precedence over the field, and that a written
// configuration has the field only if it is on.
func TestSwitches(t *testing.T) {
	for _, o := range ownSwitches {
		for name, tt := range map[string]struct {
			body string
			args []string
			want bool
		}{
			"neither":  {"", nil, false},
			"file":     {o.path + ": true\n", nil, true},
			"flag":     {"", []string{"--" + o.flag}, true},
			"both":     {o.path + ": true\n", []string{"--" + o.flag + "=false"}, false},
			"null":     {o.path + ": null\n", nil, false},
			"the same": {o.path + ": true\n", []string{"--" + o.flag}, true},
		} {
			t.Run(o.flag+", "+name, func(t *testing.T) {
				c := mustLoad(t, Linux, tt.body, tt.args...)
				if on, overrides := *o.of(&c.Switches), len(c.Overrides); on != tt.want || (name == "both") != (overrides == 1) || len(c.Warnings) > 0 {
					t.Errorf("on: %v, want %v; overrides %v, warnings %v", on, tt.want, c.Overrides, c.Warnings)
				}
				text := written(c)
				file, err := Parse("again", []byte(text))
				if err != nil || *o.of(&file.Switches) != tt.want || strings.Contains(text, o.path) != tt.want {
					t.Errorf("written: %v, %v, %v, want %v", err, file.Switches, text, tt.want)
				}
			})
		}
		o.checkField(t)
	}
}

// checkField checks how the field is refused, compared and misspelt.
func (o *ownSwitch) checkField(t *testing.T) {
	t.Helper()
	if _, err := load(t, Linux, o.path+": 7\n"); err == nil || !strings.Contains(err.Error(), o.path) {
		t.Errorf("%s: 7 gives %v", o.path, err)
	}
	on, off := mustLoad(t, Linux, o.path+": true\n"), mustLoad(t, Linux, "")
	if c := Diff(off, on, in(NFTables)); len(c) != 1 || c[0].String() != o.path+": false -> true" || c[0].Effect != Restart {
		t.Errorf("Diff = %v", c)
	}
	windows := mustLoad(t, Windows, o.path+": true\n")
	if n := windows.Notes; len(n) != 1 || !strings.Contains(n[0].Text, o.windows) {
		t.Errorf("notes %v, want that %s", n, o.windows)
	}
	file, err := Parse("f", []byte(head+o.path[:len(o.path)-2]+": true\n"))
	if err != nil || len(file.Warnings) != 1 || !strings.Contains(file.Warnings[0].Text, o.path) {
		t.Errorf("%v, %v: want the name that was meant", err, file.Warnings)
	}
}
