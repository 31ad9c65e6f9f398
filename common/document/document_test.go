// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bufio"
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// value has what the two sorts of JSON print differently: a sign of HTML, and a character
// that changes the direction of text.
var value = map[string]string{"a": "<\u202e"}

func TestFormats(t *testing.T) {
	for f, want := range map[Format]string{Text: "text\n", JSON: "{\n  \"a\": \"\\u003c\u202e\"\n}\n"} {
		var b bytes.Buffer
		if err := f.Write(&b, value, func(w *bufio.Writer) { w.WriteString("text\n") }); err != nil || b.String() != want {
			t.Errorf("%s: %q, %v; want %q", f, b.String(), err, want)
		}
	}
	err := Format("yaml").Write(&bytes.Buffer{}, value, func(*bufio.Writer) { t.Error("text was asked for") })
	if err == nil || !strings.Contains(err.Error(), `"yaml" is unknown: want text or json`) {
		t.Errorf("yaml: %v", err)
	}
}

func TestReadable(t *testing.T) {
	var b bytes.Buffer
	if err := WriteReadable(&b, value); err != nil || b.String() != "{\n  \"a\": \"<\\u202e\"\n}\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// full is a disk without room.
type full struct{ error }

func (f full) Write([]byte) (int, error) { return 0, f.error }

func TestWriteFails(t *testing.T) {
	w := full{errors.New("no space left on device")}
	for _, f := range []Format{Text, JSON} {
		if err := f.Write(w, value, func(b *bufio.Writer) { b.WriteString("text\n") }); !errors.Is(err, w.error) {
			t.Errorf("%s: %v, want %v", f, err, w.error)
		}
	}
}

// sortedLetters returns the letters of all words, in one order.
func sortedLetters(words ...string) string {
	all := []rune(strings.Join(strings.Fields(strings.Join(words, "")), ""))
	slices.Sort(all)
	return string(all)
}

// TestLayout writes tables at random. They fit, and nothing is lost.
func TestLayout(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "columns")
		table := &Table{Indent: "  ", Head: strings.TrimSuffix(strings.Repeat("H|", n), "|")}
		var texts []string
		for range rapid.IntRange(1, 4).Draw(t, "rows") {
			row := make([]Cell, n)
			for i := range row {
				row[i].Text = rapid.StringMatching(`[a-zé]{0,12}([-/., ][a-z]{1,40}){0,6}`).Draw(t, "text")
				texts = append(texts, row[i].Text)
			}
			table.Rows = append(table.Rows, row)
		}
		out := written(table)
		for line := range strings.Lines(out) {
			if w := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); w > Width {
				t.Errorf("%d columns: %s", w, line)
			}
		}
		if want, got := sortedLetters(texts...), strings.ReplaceAll(sortedLetters(out), "H", ""); want != got {
			t.Errorf("letters %s, want %s:\n%s", got, want, out)
		}
	})
}

// TestWrap checks where a word that is too long is broken.
func TestWrap(t *testing.T) {
	for text, want := range map[string][]string{
		"":                             {""},
		"one two three":                {"one two", "three"},
		"10.96.0.1,10.96.0.2":          {"10.96.0.1,", "10.96.0.2"},
		"shop/a-name-of-five":          {"shop/", "a-name-of-", "five"},
		"abcdefghijklmnop":             {"abcdefghijkl", "mnop"},
		"\x1b[31mone two\x1b[0m three": {"\x1b[31mone two\x1b[0m", "three"},
		"a fd00:10:244:1::11 and more": {"a", "fd00:10:244:", "1::11 and", "more"},
	} {
		width := 12
		if strings.HasPrefix(text, "shop") || strings.HasPrefix(text, "one") {
			width = 10
		}
		if got := Wrap(text, width); !slices.Equal(got, want) {
			t.Errorf("Wrap(%q, %d) = %q, want %q", text, width, got, want)
		}
	}
}

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
		"one line": {Table{Head: "A|WHY", Width: Unlimited, Rows: [][]Cell{{Plain("a"), Plain(strings.TrimSpace(long))}}},
			"A  WHY\na  " + strings.TrimSpace(long) + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, written(&tt.table)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
