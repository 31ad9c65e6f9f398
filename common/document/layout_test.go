// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

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
