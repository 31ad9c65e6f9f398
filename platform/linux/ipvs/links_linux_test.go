// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestInterruptedLists checks that an interrupted list is repeated, but not forever, and
// that any other error is returned at once.
func TestInterruptedLists(t *testing.T) {
	interrupted := fmt.Errorf("list: %w", netlink.ErrDumpInterrupted)
	for name, c := range map[string]struct {
		errs  []error // of the first lists; then the last one
		calls int
		want  error
	}{
		"whole at once":        {[]error{nil}, 1, nil},
		"interrupted twice":    {[]error{interrupted, interrupted, nil}, 3, nil},
		"interrupted for ever": {[]error{interrupted}, maxListAttempts, netlink.ErrDumpInterrupted},
		"refused":              {[]error{unix.EPERM}, 1, unix.EPERM},
		"refused after that":   {[]error{interrupted, unix.EPERM}, 2, unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			n, err := retryInterrupted(func() (int, error) {
				err := c.errs[min(calls, len(c.errs)-1)]
				calls++
				return calls, err
			})
			if n != c.calls || calls != c.calls || !errors.Is(err, c.want) {
				t.Errorf("%d calls, list %d, %v; want %d calls and %v", calls, n, err, c.calls, c.want)
			}
		})
	}
}
