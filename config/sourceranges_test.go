// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"testing"
)

// TestIgnoreSourceRanges checks that the flag has effect on Windows, and causes a note on
// Linux.
func TestIgnoreSourceRanges(t *testing.T) {
	const arg = "--ignore-source-ranges"
	for _, system := range []OS{Linux, Windows} {
		if c := mustLoad(t, system, ""); c.IgnoreSourceRanges {
			t.Errorf("%s: source ranges are ignored by default", system)
		}
		c := mustLoad(t, system, "", arg)
		noted := slices.ContainsFunc(c.Notes, func(n Note) bool { return n.Origin == arg })
		if !c.IgnoreSourceRanges || noted != (system == Linux) {
			t.Errorf("%s: %t, notes %v", system, c.IgnoreSourceRanges, c.Notes)
		}
	}
}
