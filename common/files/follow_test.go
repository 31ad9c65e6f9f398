// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/test/kit"
)

// TestFollowerWaitsForStableFile checks that a file does not count while it is being
// written.
func TestFollowerWaitsForStableFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	kit.WriteFile(t, path, "half")
	f := &Follower{Read: func() ([]byte, error) { return os.ReadFile(path) }}
	synctest.Test(t, func(t *testing.T) {
		go func() {
			time.Sleep(stableTime / 2)
			_ = os.WriteFile(path, []byte("whole"), 0o600)
		}()
		if got, stable := f.readStable(t.Context()); !stable || string(got.Data) != "whole" {
			t.Errorf("stable content %q, %v, want the whole file", got.Data, stable)
		}
	})
}

// TestFollower checks which reads count as a change: other content, another error, and
// any read on request.
func TestFollower(t *testing.T) {
	var got []string
	data, readErr := "a", error(nil)
	signals := make(chan os.Signal)
	end := errors.New("the end")
	f := &Follower{
		Path:        filepath.Join(t.TempDir(), "c.yaml"),
		Read:        func() ([]byte, error) { return []byte(data), readErr },
		Key:         NewContent([]byte("a"), nil).Key,
		WatchFailed: func(error) {},
		Changed: func(_ context.Context, c Content) error {
			got = append(got, string(c.Data))
			if string(c.Data) == "last" {
				return end
			}
			return nil
		},
	}
	synctest.Test(t, func(t *testing.T) {
		check := func(check func(context.Context) error) {
			t.Helper()
			if err := check(t.Context()); err != nil {
				t.Error(err)
			}
		}
		check(f.Check) // as the caller knows it
		check(f.CheckNow)
		data = "b"
		check(f.Check)
		check(f.Check)
		readErr = errors.New("unreadable")
		check(f.Check)
		check(f.Check)
		readErr = nil
		check(f.Check)
	})
	if want := []string{"a", "b", "", "b"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
	f.Signals, data = signals, "last"
	f.Key = NewContent([]byte("last"), nil).Key
	go func() { signals <- syscall.SIGHUP }()
	if err := f.Run(t.Context()); !errors.Is(err, end) {
		t.Errorf("Run = %v, want the error of Changed", err)
	}
}
