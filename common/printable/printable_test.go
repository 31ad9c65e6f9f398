// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestNormalize(t *testing.T) {
	tests := map[string]struct{ in, text, lines string }{
		"nothing":           {"", "", ""},
		"plain":             {`a "b" \c`, `a "b" \c`, `a "b" \c`},
		"other scripts":     {"größer 数 é", "größer 数 é", "größer 数 é"},
		"two lines":         {"a\n\tb", `a\n\tb`, "a\n\tb"},
		"carriage return":   {"a\rb", `a\rb`, `a\rb`},
		"colour":            {"\x1b[31mred", `\x1b[31mred`, `\x1b[31mred`},
		"colour of 8 bits":  {"\u009b31mred", `\u009b31mred`, `\u009b31mred`},
		"delete":            {"a\x7f\x08", `a\u007f\b`, `a\u007f\b`},
		"other direction":   {"a\u202eb\u2066", `a\u202eb\u2066`, `a\u202eb\u2066`},
		"line separator":    {"a\u2028b\u0085", `a\u2028b\u0085`, `a\u2028b\u0085`},
		"broken UTF-8":      {"a\xffb\xc3", `a\xffb\xc3`, `a\xffb\xc3`},
		"replacement":       {"a\ufffdb", "a\ufffdb", "a\ufffdb"},
		"a quote before it": {"\"\x00\"", `"\x00"`, `"\x00"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Text(tt.in); got != tt.text {
				t.Errorf("Text(%q) = %q, want %q", tt.in, got, tt.text)
			}
			if got := Lines(tt.in); got != tt.lines {
				t.Errorf("Lines(%q) = %q, want %q", tt.in, got, tt.lines)
			}
		})
	}
}

func TestError(t *testing.T) {
	path := &fs.PathError{Op: "open", Path: "a\nb\x1b", Err: errors.New("c")}
	err := errors.Join(fmt.Errorf("read: %w", path), errors.New("d\x00"))
	if got, want := Error(err), `read: open a\nb\x1b: c`+"\n"+`d\x00`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWriter(t *testing.T) {
	var b bytes.Buffer
	if n, err := fmt.Fprint(Writer(&b), "a\x1b[1m\nb"); n != 7 || err != nil || b.String() != "a\\x1b[1m\nb" {
		t.Errorf("%d, %v, wrote %q", n, err, b.String())
	}
	b.Reset()
	w := Writer(&b)
	for _, c := range []byte("größer \x9b 数\n") { // as a buffer may split it
		if n, err := w.Write([]byte{c}); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	if got, want := b.String(), "größer \\x9b 数\n"; got != want {
		t.Errorf("in pieces %q, want %q", got, want)
	}
	refused := errors.New("full")
	if n, err := Writer(full{refused}).Write([]byte("a")); n != 0 || !errors.Is(err, refused) {
		t.Errorf("%d, %v, want 0 and %v", n, err, refused)
	}
}

type full struct{ error }

func (f full) Write([]byte) (int, error) { return 0, f.error }

func FuzzText(f *testing.F) {
	for _, s := range []string{"", "a", "\x1b[2J", "\xff", "a\nb", "\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if i := strings.IndexFunc(got, unicode.IsControl); i >= 0 || !utf8.ValidString(got) {
			t.Errorf("Text(%q) = %q", s, got)
		}
		if Text(got) != got {
			t.Errorf("Text(%q) = %q, and again %q", s, got, Text(got))
		}
		if lines := Lines(s); strings.Count(lines, "\n") != strings.Count(s, "\n") || Text(lines) != got {
			t.Errorf("Lines(%q) = %q, on one line %q", s, lines, got)
		}
	})
}

// TestTerminal shows what another terminal has, in pieces.
func TestTerminal(t *testing.T) {
	const said = "\x1b[H\x1b[1;31mfailed\x1b[0m\x1b[K\r\nw\u00f6rk\x1b[J \x1b]0;owned\x07 \x1b[2J \x1b[6n \x1bc \rforged \u009b31m \u202e.\n"
	const want = "\x1b[H\x1b[1;31mfailed\x1b[0m\x1b[K\r\nw\u00f6rk\x1b[J \\x1b]0;owned\\a \\x1b[2J \\x1b[6n \\x1bc \\rforged \\u009b31m \\u202e.\n"
	for size := 1; size <= len(said); size++ {
		var shown strings.Builder
		s := Terminal(&shown)
		for piece := range slices.Chunk([]byte(said), size) {
			if n, err := s.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if shown.String() != want {
			t.Errorf("pieces of %d: got %q\nwant %q", size, shown.String(), want)
		}
	}
}
