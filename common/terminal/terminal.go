// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminal knows who reads what a command writes: how wide the terminal is, whether it
// shows colours, and that somebody waits.
package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/term"

	"kubeproxy/common/document"
)

// NoticeDelay is how long a command may take without a notice.
const NoticeDelay = 2 * time.Second

// NoticeIfSlow writes text to w if what follows takes long, and nothing after end.
func NoticeIfSlow(w io.Writer, text string) (end func()) {
	written := make(chan struct{})
	slow := time.AfterFunc(NoticeDelay, func() {
		defer close(written)
		fmt.Fprintln(w, text)
	})
	return func() {
		if !slow.Stop() {
			<-written
		}
	}
}

// Coloured returns whether w is a terminal and its user has not disabled colours.
func Coloured(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && takesCodes(w) }

// leastColumns is the least width that lines are broken to.
const leastColumns = 40

// Columns returns how many columns a line to w may have, by $COLUMNS or the terminal. For a program
// that reads w nothing is wrapped: rows are lines, and names whole.
func Columns(w io.Writer) int {
	n, _ := strconv.Atoi(os.Getenv("COLUMNS"))
	if f, ok := w.(*os.File); ok && n < 1 {
		n, _, _ = term.GetSize(int(f.Fd())) // 0 for what is no terminal
	}
	if n < 1 {
		return document.Unlimited
	}
	return max(n, leastColumns)
}

// takesCodes returns whether w is a terminal that knows the codes of ECMA-48.
func takesCodes(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	// Old consoles of Windows print the codes. Windows Terminal sets WT_SESSION.
	if os.Getenv("WT_SESSION") == "" && os.Getenv("TERM") == "" {
		return false
	}
	return Attached(f)
}

// Attached returns whether somebody reads f on a terminal.
func Attached(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Pages shows one page after the other.
type Pages struct {
	To    io.Writer
	begun bool
}

// Show replaces the page before on a terminal, and follows it after an empty line elsewhere.
func (p *Pages) Show(text []byte) error {
	const home, clearLine, clearBelow = "\x1b[H", "\x1b[K", "\x1b[J"
	switch {
	case takesCodes(p.To):
		text = append([]byte(home), bytes.ReplaceAll(text, []byte("\n"), []byte(clearLine+"\n"))...)
		text = append(text, clearBelow...)
	case p.begun:
		text = append([]byte("\n"), text...)
	}
	p.begun = true
	_, err := p.To.Write(text)
	return err
}
