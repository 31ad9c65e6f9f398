// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func written(t *Table) string {
	var b bytes.Buffer
	t.Write(&b)
	return b.String()
}

// TestColours checks that colours do not change where columns are.
func TestColours(t *testing.T) {
	plain := &Table{Head: "X|Y", Rows: [][]Cell{{{Text: "a", Colour: Red}, Plain("b")}, {{Text: "long", Colour: Green}, Plain("c")}}}
	colours := *plain
	colours.Colours = true
	bare := strings.NewReplacer(string(Red), "", string(Green), "", string(Bold), "", reset, "").Replace(written(&colours))
	if want := "X     Y\na     b\nlong  c\n"; written(plain) != want || bare != want || !strings.Contains(written(&colours), string(Red)+"a"+reset) {
		t.Errorf("plain:\n%s\ncoloured:\n%q", written(plain), written(&colours))
	}
}

// TestTables checks where cells stand, and that a long text is wrapped and not cut.
func TestTables(t *testing.T) {
	number := func(s string) Cell { return Cell{Text: s, Right: true} }
	long := strings.Repeat("word ", 30)
	for name, tt := range map[string]struct {
		table Table
		want  string
	}{
		"an empty column": {Table{Head: "A|B|C", Rows: [][]Cell{{Plain("a"), {}, Plain("c")}}}, "A  C\na  c\n"},
		"numbers": {Table{Indent: "  ", Head: "NAME|N|BYTES", Rows: [][]Cell{{Plain("a"), number("7"), number("1 kB")}, {Plain("bcdef"), number("1234"), number("9 B")}}},
			"  NAME      N  BYTES\n  a         7   1 kB\n  bcdef  1234    9 B\n"},
		"a long text": {Table{Head: "A|WHY", Rows: [][]Cell{{Plain("a"), Plain(strings.TrimSpace(long))}}},
			"A  WHY\na  " + strings.TrimSpace(strings.Repeat("word ", 19)) + "\n   " + strings.TrimSpace(strings.Repeat("word ", 11)) + "\n"},
		"no room": {Table{Head: "A|WHY", Rows: [][]Cell{{Plain(strings.Repeat("a", 90)), Plain("because of this one")}}},
			"A\n" + strings.Repeat("a", 90) + "\n    WHY  because of this one\n"},
		"two lists": {Table{Head: "ADDRESSES|PORTS|N", Rows: [][]Cell{{Plain(strings.TrimSuffix(strings.Repeat("10.96.0.1,", 8), ",")), Plain(strings.Repeat("80/TCP,", 4) + "80/UDP"), number("7")}}},
			"ADDRESSES                                                      PORTS                               N\n" +
				strings.Repeat("10.96.0.1,", 6) + "   80/TCP,80/TCP,80/TCP,80/TCP,80/UDP  7\n  10.96.0.1,10.96.0.1\n"},
		"a long name": {Table{Indent: "  ", Head: "SERVICE|ADDRESS|STATE|WHY", Rows: [][]Cell{{Plain("a-namespace/" + strings.Repeat("name-", 20) + "end"), Plain("10.96.0.1"), Plain("failed"), Plain("no room")}}},
			"  SERVICE                                                                          ADDRESS    STATE\n" +
				"  a-namespace/" + strings.Repeat("name-", 13) + "    10.96.0.1  failed\n    " + strings.Repeat("name-", 7) + "end\n      WHY  no room\n"},
		"one line": {Table{Head: "A|WHY", OneLine: true, Rows: [][]Cell{{Plain("a"), Plain(strings.TrimSpace(long))}}},
			"A  WHY\na  " + strings.TrimSpace(long) + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, written(&tt.table)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
