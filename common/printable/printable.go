// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package printable makes text fit for people to read that others wrote: names
// in objects, file names, arguments, answers of servers. Such text may hold
// codes that steer a terminal, or line breaks that forge lines of a log. They
// are shown as escapes, and everything else stays as it is.
package printable

import (
	"io"
	"io/fs"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Text returns s on one line.
func Text(s string) string { return escape(s, "") }

// Lines returns s with its line breaks and tabs. It is for what was put
// together here, of parts that have gone through Text or are in quotes.
func Lines(s string) string { return escape(s, "\n\t") }

// escape spells what cannot be printed as Go does in quotes. Besides control
// characters, that is what changes the direction of text, and broken UTF-8.
func escape(s, keep string) string {
	if printable(s, keep) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		part := s[i : i+n]
		switch {
		case r == 0x7f: // which JSON has to understand, too
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

// isShown reports that r, read from n bytes, is printed as it is.
func isShown(r rune, n int, keep string) bool {
	broken := r == utf8.RuneError && n < 2
	return !broken && (strconv.IsPrint(r) || strings.ContainsRune(keep, r))
}

// Error returns the text of err as Lines, with the paths in it on one line each.
func Error(err error) string {
	text := err.Error()
	for _, path := range paths(err) {
		text = strings.ReplaceAll(text, path, Text(path))
	}
	return Lines(text)
}

// paths returns the paths in the tree of err that have to be escaped.
func paths(err error) []string {
	var all []string
	if e, ok := err.(*fs.PathError); ok && Text(e.Path) != e.Path {
		all = append(all, e.Path)
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			all = append(all, paths(inner)...)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			all = append(all, paths(inner)...)
		}
	}
	return all
}

// Writer applies Lines to what is written, and passes it on to w. The beginning of
// a character waits for the rest of it.
func Writer(w io.Writer) io.Writer { return &writer{to: w} }

type writer struct {
	mu   sync.Mutex
	to   io.Writer
	rest []byte // the beginning of a character
}

// Write reports p as written in full if it was, however long it became.
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
