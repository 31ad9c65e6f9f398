// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
	"time"
)

// TestUDPIdleTimeout checks that a flag takes precedence over the file, and the file over
// the default.
func TestUDPIdleTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		args []string
		want time.Duration
		note string
	}{
		"neither":         {"mode: userspace\n", nil, 250 * time.Millisecond, ""},
		"file":            {"mode: userspace\nudpIdleTimeout: 3s\n", nil, 3 * time.Second, "is not a field any more"},
		"flag":            {"mode: userspace\n", []string{"--udp-timeout=2s"}, 2 * time.Second, ""},
		"both":            {"mode: userspace\nudpIdleTimeout: 3s\n", []string{"--udp-timeout=2s"}, 2 * time.Second, "is not a field any more"},
		"in another mode": {"mode: nftables\n", []string{"--udp-timeout=2s"}, 2 * time.Second, "has an effect in mode userspace only"},
	} {
		t.Run(name, func(t *testing.T) {
			c := mustLoad(t, Linux, tt.body, tt.args...)
			note := ""
			for _, n := range c.Notes {
				note += n.String()
			}
			if c.UDPIdleTimeout != tt.want || !strings.Contains(note, tt.note) || tt.note == "" && strings.Contains(note, "udp") {
				t.Errorf("%s, %q; want %s, %q", c.UDPIdleTimeout, note, tt.want, tt.note)
			}
			if overrides := len(c.Overrides); (name == "both") != (overrides == 1) {
				t.Errorf("%d overrides", overrides)
			}
		})
	}
	old, now := mustLoad(t, Linux, "mode: userspace\n"), mustLoad(t, Linux, "mode: userspace\n", "--udp-timeout=2s", "--proxy-port-range=5000-5003")
	if c := Diff(old, now, in(Userspace)); len(c) != 2 || c[0].Effect != Restart || c[1].Effect != Restart || c[1].String() != "udpIdleTimeout: 250ms -> 2s" {
		t.Errorf("Diff = %v", c)
	}
	if first, last := now.Listeners(); first != 5000 || last != 5003 {
		t.Errorf("Listeners = %d, %d", first, last)
	}
}
