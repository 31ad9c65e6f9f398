// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"strings"
	"testing"
)

// TestOthers checks what rules of others make of the verdict, and that they are printed.
func TestOthers(t *testing.T) {
	one := func(does Deed, doubts ...Doubt) Other {
		return Other{Hook: "forward", Table: "inet fw", Chain: "guard", Does: does, Rule: "the rule R", Look: "nft -a list chain inet fw guard", To: []string{"10.0.0.1:80"}, Doubts: doubts}
	}
	doubt := Doubt{Rule: "the rule D", Does: Drops, Why: "expression limit", Look: "nft LOOK"}
	for name, tt := range map[string]struct {
		action  string
		other   Other
		verdict Agreement
		want    string
	}{
		"drops":            {"forward", one(Drops), Differ, "the rule R drops packets to 10.0.0.1:80, and is not kube-proxy's\n  look  nft -a list chain inet fw guard"},
		"drops any":        {"pass", one(Drops), Differ, "drops packets"},
		"drops what drops": {"drop", one(Drops), Agree, "note: the rule R drops"},
		"translates":       {"forward", one(Translates), Differ, "another destination"},
		"translates other": {"pass", one(Translates), Agree, "note: the rule R gives"},
		"masquerades":      {"forward", one(Masquerades), Agree, "note: the rule R masquerades"},
		"doubt":            {"forward", one(Passes, doubt), Agree, "as far as the rules of others can be followed:\n  the rule D may drop it (expression limit)\n  look  nft LOOK"},
		"passes":           {"forward", one(Passes), Agree, "lets it pass\n\nThe node does what it should.\n"},
	} {
		x := &Explanation{Action: tt.action}
		x.Compare(&Path{Action: tt.action, Others: []Other{tt.other}})
		var b bytes.Buffer
		if err := (View{}).Print(&b, x); err != nil || x.Verdict != tt.verdict || !strings.Contains(b.String(), tt.want) {
			t.Errorf("%s: %s, %v, want %s and %q in\n%s", name, x.Verdict, err, tt.verdict, tt.want, b.String())
		}
	}
}
