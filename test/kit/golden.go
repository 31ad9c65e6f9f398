// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/document"
)

// paths are what follows the name of a folder.
var paths = regexp.MustCompile(`DIR(\\[^\\\s:;"',]+)+`)

// systemTexts of Windows and of Wine, and those of Linux.
var systemTexts = strings.NewReplacer(
	"GetFileAttributesEx ", "stat ",
	"CreateFile ", "stat ",
	"The system cannot find the file specified.", "no such file or directory",
	"The system cannot find the path specified.", "no such file or directory",
	"File not found.", "no such file or directory",
	"Path not found.", "no such file or directory",
)

// Normalize makes what a program prints the same on every system, so that tests compare it
// with one text: DIR for the name of a folder, in JSON too, and one set of words for a file
// that is not there. It changes nothing else.
func Normalize(text, dir string) string {
	text = strings.ReplaceAll(text, dir, "DIR")
	text = strings.ReplaceAll(text, strings.ReplaceAll(dir, `\`, `\\`), "DIR") // as JSON has it
	text = paths.ReplaceAllStringFunc(text, func(path string) string { return strings.ReplaceAll(path, `\`, "/") })
	return systemTexts.Replace(text)
}

// CompareGolden requires that got is the text of a golden file.
func CompareGolden(t testing.TB, path, got string) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

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
