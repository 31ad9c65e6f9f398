// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package printable makes text fit for people to read that others wrote: names
// in objects, file names, arguments, answers of servers. Such text may hold
// codes that steer a terminal, or line breaks that forge lines of a log. They
// are shown as escapes, and everything else stays as it is.
package printable

import (
	"io"
	"strconv"
	"strings"
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
		if !shown(r, n, keep) {
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
		if !shown(r, n, keep) {
			return false
		}
		i += n
	}
	return true
}

// shown reports that r, read from n bytes, is printed as it is.
func shown(r rune, n int, keep string) bool {
	broken := r == utf8.RuneError && n < 2
	return !broken && (strconv.IsPrint(r) || strings.ContainsRune(keep, r))
}

// Writer applies Lines to what is written, and passes it on to w. Each call
// must end between two characters.
func Writer(w io.Writer) io.Writer { return writer{w} }

type writer struct{ to io.Writer }

// Write reports p as written in full if it was, however long it became.
func (w writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, Lines(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
