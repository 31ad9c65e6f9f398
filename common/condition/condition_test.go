// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"fmt"
	"strings"
	"testing"

	"kubeproxy/test/kit"
)

// TestKinds holds docs/troubleshooting.md to the conditions that there are.
func TestKinds(t *testing.T) {
	var want strings.Builder
	for _, k := range Kinds() {
		effect := ""
		if k.Blocks {
			effect = " (may stop traffic)"
		}
		fmt.Fprintf(&want, "- `%s%s`: %s%s\n", k.Name, k.About, k.What, effect)
		kit.Check(t, (k.About != "") == strings.HasSuffix(string(k.Name), "-"), "%s: About is %q", k.Name, k.About)
	}
	page := kit.ReadFile(t, "../../docs/troubleshooting.md")
	const heading = "\n## All conditions\n"
	_, section, found := strings.Cut(string(page), heading)
	section, _, _ = strings.Cut(section, "\n## ")
	var got strings.Builder
	for line := range strings.Lines(section) {
		if strings.HasPrefix(line, "- `") {
			got.WriteString(line)
		}
	}
	if !found || got.String() != want.String() {
		t.Errorf("docs/troubleshooting.md: want these rows below %q:\n%s", strings.TrimSpace(heading), want.String())
	}
}
