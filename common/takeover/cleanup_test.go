// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"k8s.io/klog/v2"

	"kubeproxy/common/errtree"
	"kubeproxy/test/kit"
)

func TestOnlyForbidden(t *testing.T) {
	other := errors.New("other")
	tests := map[string]struct {
		err  error
		want bool
	}{
		"nothing":       {nil, false},
		"not permitted": {fmt.Errorf("look: %w: as root", syscall.EPERM), true},
		"unread":        {unreadError{&fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}}, true},
		"several":       {fmt.Errorf("look: %w", errors.Join(syscall.EPERM, syscall.EACCES)), true},
		"another":       {fmt.Errorf("look: %w", other), false},
		"mixed":         {errors.Join(syscall.EPERM, other), false},
	}
	for name, tt := range tests {
		if got := errtree.Only(tt.err, fs.ErrPermission); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// TestCleanup empties targets of each kind, and checks what is logged and returned.
func TestCleanup(t *testing.T) {
	for situation, tt := range map[string]struct {
		target    Target
		left      fakeLeftovers
		removed   int
		log, text string // of the only line, and of the error
	}{
		"nothing there":  {log: "Nothing to clean up"},
		"rules":          {left: fakeLeftovers{what: "rules"}, removed: 1, log: `"Cleaned up" place="a place" removed="rules"`},
		"of kube-proxy":  {target: Target{Upstream: true}, left: fakeLeftovers{what: "rules"}},
		"skipped":        {target: Target{IPVS: true}, left: fakeLeftovers{what: "rules"}, log: "Left alone, as the test asks for"},
		"removal fails":  {left: fakeLeftovers{what: "rules", fail: []error{errSystemTest}}, removed: 1, text: "clean up a place: the kernel is out of order"},
		"no privileges":  {left: fakeLeftovers{what: "rules", fail: []error{syscall.EPERM}}, removed: 1, log: "Not allowed to clean up", text: "clean up a place: permission denied: ask root"},
		"unchecked":      {left: fakeLeftovers{what: "rules", fail: []error{&UncheckedError{Err: errSystemTest}}}, removed: 1, log: "Warning: not checked, for want of rights"},
		"suspected":      {left: fakeLeftovers{what: "rules", fail: []error{&UncheckedError{Err: errSystemTest, Suspected: true}}}, removed: 1, text: "clean up a place: the kernel is out of order"},
		"somebody makes": {left: fakeLeftovers{what: "rules", recreated: true}, removed: 1, text: "clean up a place: a place has rules again"},
	} {
		t.Run(situation, func(t *testing.T) {
			logger, log := kit.NewLog(2)
			ctx := klog.NewContext(t.Context(), logger)
			tt.target.Leftovers = &tt.left
			skip := func(p Target) string {
				if p.IPVS {
					return "the test"
				}
				return ""
			}
			text := ""
			if err := Cleanup(ctx, []Target{tt.target}, CleanupOptions{Skip: skip, Privileges: "ask root"}); err != nil {
				text = err.Error()
			}
			if !strings.HasPrefix(text, tt.text) || tt.text == "" && text != "" || tt.left.removed != tt.removed {
				t.Errorf("removed %d times, error %q; want %d, %q", tt.left.removed, text, tt.removed, tt.text)
			}
			if !strings.Contains(log.String(), tt.log) || tt.log == "" && log.Len() > 0 {
				t.Errorf("log %q, want %q", log.String(), tt.log)
			}
		})
	}
}
