// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Session is what a user types and sees.
type Session struct {
	Name   string // as in the mark of the page: <!-- session NAME -->
	Prompt string // before what is typed
	Status string // a command that prints the exit code, as the shell has it
	text   strings.Builder
}

// Typed adds a line that was typed, what was printed, and the exit code.
func (s *Session) Typed(line, out string, code int) {
	s.shows(s.Prompt + " " + line)
	for l := range strings.Lines(out) {
		s.shows(strings.TrimRight(l, " \n\t"))
	}
	s.shows(s.Prompt + " " + s.Status)
	s.shows(fmt.Sprint(code))
}

func (s *Session) shows(line string) { s.text.WriteString(strings.TrimRight("    "+line, " ") + "\n") }

// Page is a document that shows sessions.
type Page struct {
	Path    string
	Rewrite bool // in place of requiring that it is as it should be
}

// Compare requires that the page shows all sessions as they are, or rewrites them.
func (p Page) Compare(t *testing.T, all ...*Session) {
	t.Helper()
	text, err := os.ReadFile(p.Path)
	if err != nil {
		t.Fatal(err)
	}
	now := string(text)
	for _, s := range all {
		if now, err = replace(now, s); err != nil {
			t.Fatalf("%s %v", p.Path, err)
		}
	}
	diff := cmp.Diff(string(text), now)
	switch {
	case diff == "":
	case !p.Rewrite:
		t.Errorf("%s shows something else; -update-insight rewrites it (-page +session):\n%s", p.Path, diff)
	default:
		if err := os.WriteFile(p.Path, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// replace puts the text of s behind its mark, in the place of the block there.
func replace(page string, s *Session) (string, error) {
	mark := "<!-- session " + s.Name + " -->\n"
	before, after, found := strings.Cut(page, mark)
	if !found {
		return "", fmt.Errorf("lacks %s", mark)
	}
	rest := strings.TrimLeft(after, "\n")
	for strings.HasPrefix(rest, "    ") || strings.HasPrefix(rest, "\n") {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	return before + mark + "\n" + s.text.String() + "\n" + rest, nil
}
