// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"
)

// noticeDelay is how long a command may take without a notice.
const noticeDelay = 2 * time.Second

// noticeIfSlow writes text to w if what follows takes long. end cancels that: nothing is
// written after it returns.
func noticeIfSlow(w io.Writer, text string) (end func()) {
	written := make(chan struct{})
	slow := time.AfterFunc(noticeDelay, func() {
		defer close(written)
		fmt.Fprintln(w, text)
	})
	return func() {
		if !slow.Stop() {
			<-written
		}
	}
}
