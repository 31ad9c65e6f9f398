// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package goldentext

import (
	"strings"
	"testing"
	"unicode/utf8"

	"kubeproxy/common/document"
)

// CheckWidth requires that no line of text is too long for a terminal, and that text has
// each of names, in however many lines.
func CheckWidth(t testing.TB, text string, names ...string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > document.Width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, name := range names {
		if !hasPieces(text, name) {
			t.Errorf("%s is not there in full:\n%s", name, text)
		}
	}
}

// hasPieces reports whether the letters of name stand in text one after another, perhaps
// in pieces with other columns between them.
func hasPieces(text, name string) bool {
	for name != "" {
		n := len(name)
		for n > 0 && !strings.Contains(text, name[:n]) {
			n--
		}
		if n == 0 {
			return false
		}
		at := strings.Index(text, name[:n])
		text, name = text[at+n:], name[n:]
	}
	return true
}
