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
			"neither":       {"", nil, false},
			"file":          {o.path + ": true\n", nil, true},
			"file, in YAML": {o.path + ": yes\n", nil, true},
			"flag":          {"", []string{"--" + o.flag}, true},
			"flag as text":  {"", []string{"--" + o.flag + "=1"}, true},
			"both":          {o.path + ": true\n", []string{"--" + o.flag + "=false"}, false},
			"null":          {o.path + ": null\n", nil, false},
			"the same":      {o.path + ": true\n", []string{"--" + o.flag}, true},
		} {
			t.Run(o.flag+", "+name, func(t *testing.T) {
				c := mustLoad(t, Linux, tt.body, tt.args...)
				if on, overrides := !off(o.of(&c.Switches)), len(c.Overrides); on != tt.want || (name == "both") != (overrides == 1) || len(c.Warnings) > 0 {
					t.Errorf("on: %v, want %v; overrides %v, warnings %v", on, tt.want, c.Overrides, c.Warnings)
				}
				text := written(c)
				file, err := Parse("again", []byte(text))
				if err != nil || off(o.of(&file.Switches)) == tt.want || strings.Contains(text, o.path) != tt.want {
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
	if c := Diff(off, on, in(NFTables)); len(c) != 1 || c[0].String() != o.path+": false -> "+o.of(&on.Switches).String() || c[0].Effect != Restart {
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

// TestAcceleration reads whose sockets are accelerated, from a flag and from a file.
func TestAcceleration(t *testing.T) {
	for text, want := range map[string]Acceleration{
		"node": AccelerateNode, "all": AccelerateAll, "true": AccelerateAll, "on": AccelerateAll, "false": AccelerateNone, "off": AccelerateNone, "Node": AccelerateNode,
		`"true"`: AccelerateAll,
	} {
		file := mustLoad(t, Linux, "socketAcceleration: "+text+"\n")
		flag := mustLoad(t, Linux, "", "--socket-acceleration="+strings.Trim(text, `"`))
		if file.SocketAcceleration != want || flag.SocketAcceleration != want {
			t.Errorf("%s: file %q, flag %q, want %q", text, file.SocketAcceleration, flag.SocketAcceleration, want)
		}
		if again, err := Parse("again", []byte(written(file))); err != nil || again.SocketAcceleration != want {
			t.Errorf("%s, written: %q, %v", text, again.SocketAcceleration, err)
		}
	}
	for _, text := range []string{"pods", "7", "[node]", `""`} {
		_, err := load(t, Linux, "socketAcceleration: "+text+"\n")
		if err == nil || !strings.Contains(err.Error(), "socketAcceleration") || !strings.Contains(err.Error(), "want node, all, true for all, or false") {
			t.Errorf("%s: %v", text, err)
		}
	}
	node, all := mustLoad(t, Linux, "", "--socket-acceleration=node"), mustLoad(t, Linux, "socketAcceleration: true\n")
	if c := Diff(node, all, in(NFTables)); len(c) != 1 || c[0].String() != "socketAcceleration: node -> all" || c[0].Effect != Restart {
		t.Errorf("Diff = %v", c)
	}
	both := mustLoad(t, Linux, "socketAcceleration: all\n", "--socket-acceleration=node")
	if len(both.Overrides) != 1 || both.SocketAcceleration != AccelerateNode {
		t.Errorf("%q, %v", both.SocketAcceleration, both.Overrides)
	}
}
