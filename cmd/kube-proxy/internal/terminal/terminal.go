// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/term"
)

// NoticeDelay is how long a command may take without a notice.
const NoticeDelay = 2 * time.Second

// NoticeIfSlow writes text to w if what follows takes long. end cancels that: nothing is
// written after it returns.
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
func Coloured(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	// Old consoles of Windows print the codes. Windows Terminal sets WT_SESSION.
	if runtime.GOOS == "windows" && os.Getenv("WT_SESSION") == "" && os.Getenv("TERM") == "" {
		return false
	}
	return Attached(f)
}

// Attached returns whether somebody reads f on a terminal.
func Attached(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
