// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package printable makes foreign text safe to print: names in objects, file names,
// arguments, answers of servers. Such text may contain codes that control a terminal, or
// line breaks that forge log lines. The package replaces these by escapes and leaves the
// rest unchanged.
package printable

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"kubeproxy/common/errtree"
)

// Text returns s on one line.
func Text(s string) string { return escape(s, "") }

// Lines returns s with its line breaks and tabs. It is for text that this program
// composed of parts that are quoted or were passed through Text.
func Lines(s string) string { return escape(s, "\n\t") }

// Join joins the texts of values, as strings.Join does. It escapes nothing.
func Join[T fmt.Stringer](values []T, sep string) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = v.String()
	}
	return strings.Join(texts, sep)
}

// escape writes unprintable characters as in a quoted Go string. Besides control
// characters, these are characters that change the direction of text, and invalid UTF-8.
func escape(s, keep string) string {
	if printable(s, keep) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		part := s[i : i+n]
		switch {
		case r == 0x7f: // JSON must be able to read it too
			part = `\u007f`
		case !isShown(r, n, keep):
			part = strings.Trim(strconv.Quote(part), `"`)
		}
		b.WriteString(part)
		i += n
	}
	return b.String()
}

func printable(s, keep string) bool {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if !isShown(r, n, keep) {
			return false
		}
		i += n
	}
	return true
}

// isShown reports whether r, which was decoded from n bytes, is printed unchanged.
func isShown(r rune, n int, keep string) bool {
	broken := r == utf8.RuneError && n < 2
	return !broken && (strconv.IsPrint(r) || strings.ContainsRune(keep, r))
}

// Error returns the text of err as Lines, with each path in it on one line.
func Error(err error) string {
	text := err.Error()
	for _, path := range paths(err) {
		text = strings.ReplaceAll(text, path, Text(path))
	}
	return Lines(text)
}

// paths returns those paths in the tree of err that contain characters to escape.
func paths(err error) []string {
	var all []string
	for _, e := range errtree.Find[*fs.PathError](err) {
		if Text(e.Path) != e.Path {
			all = append(all, e.Path)
		}
	}
	return all
}

// Writer returns a writer that applies Lines, and waits for the rest of a character.
func Writer(w io.Writer) io.Writer { return &writer{to: w} }

type writer struct {
	mu   sync.Mutex
	to   io.Writer
	rest []byte // the beginning of a character
}

// Write returns len(p) if all of p was written, even if the escaped text is longer.
func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := append(w.rest, p...)
	complete := len(text)
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if last := text[len(text)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				complete -= n
			}
			break
		}
	}
	w.rest = append([]byte(nil), text[complete:]...)
	if _, err := io.WriteString(w.to, Lines(string(text[:complete]))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Terminal returns a writer that shows on the terminal w what a process of this program prints on
// one elsewhere. It is like Writer, but keeps the codes for colours and to replace a page (SGR,
// CUP, EL and ED of ECMA-48), and the returns that a terminal adds to line breaks.
func Terminal(w io.Writer) io.Writer { return &terminal{to: w, text: Writer(w)} }

type terminal struct {
	to   io.Writer
	text io.Writer // to, with escapes
	rest []byte    // what may be the beginning of a code
}

var (
	harmless   = regexp.MustCompile(`\x1b\[(?:[0-9;]{0,16}m|[HKJ])|\r+\n`)
	incomplete = regexp.MustCompile(`(?:\x1b(?:\[[0-9;]{0,16})?|\r+)$`)
)

// Write implements io.Writer.
func (t *terminal) Write(p []byte) (int, error) {
	all := append(t.rest, p...)
	end := len(all)
	if at := incomplete.FindIndex(all); at != nil {
		end = at[0]
	}
	t.rest = bytes.Clone(all[end:])
	all = all[:end]
	for len(all) > 0 {
		at := harmless.FindIndex(all)
		if at == nil {
			at = []int{len(all), len(all)}
		}
		if _, err := t.text.Write(all[:at[0]]); err != nil {
			return 0, err
		}
		if _, err := t.to.Write(all[at[0]:at[1]]); err != nil {
			return 0, err
		}
		all = all[at[1]:]
	}
	return len(p), nil
}
