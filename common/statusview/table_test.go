// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"strings"
	"testing"
)

// TestColour checks that colours do not change where columns are.
func TestColour(t *testing.T) {
	rows := [][]cell{{{"a", red}, plain("b")}, {{"long", green}, plain("c")}}
	p, c := &printer{}, &printer{colour: true}
	p.table("", "X|Y", rows)
	c.table("", "X|Y", rows)
	bare := strings.NewReplacer(string(red), "", string(green), "", string(bold), "", reset, "").Replace(c.text.String())
	if want := "X     Y\na     b\nlong  c\n"; p.text.String() != want || bare != want || !strings.Contains(c.text.String(), string(red)+"a"+reset) {
		t.Errorf("plain:\n%s\ncoloured:\n%q", p.text.String(), c.text.String())
	}
}
