// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package files notices when files change, and knows how text is written in them.
// What the text means it does not know.
package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// One save makes several notifications, and a file renamed away is back
	// before long.
	quietPeriod = 15 * time.Millisecond
	// Somebody who never stops writing is not waited for.
	maxWait = 500 * time.Millisecond
)

// Watch notices changes of files and directories through the directories they
// are in, so that it survives renames and symlinks that are swapped, as in
// mounted volumes. Its methods but Kick are for one goroutine.
type Watch struct {
	paths        []string
	watcher      *fsnotify.Watcher // nil if the system has none to give
	err          error             // why there is none
	watchedPaths map[string]bool   // directories in which everything matters
	kick         chan struct{}
}

// NewWatch returns a Watch of paths, which need not exist. Nothing is noticed
// before Add.
func NewWatch(paths ...string) *Watch {
	w := &Watch{watchedPaths: map[string]bool{}, kick: make(chan struct{}, 1)}
	for _, p := range paths {
		w.paths = append(w.paths, filepath.Clean(p))
	}
	w.watcher, w.err = fsnotify.NewWatcher()
	return w
}

// Close ends the Watch.
func (w *Watch) Close() {
	if w.watcher != nil {
		w.watcher.Close()
	}
}

// Kick ends a Wait at once. It never blocks.
func (w *Watch) Kick() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// Add watches what the paths are now; call it before each look at the files.
// It returns what hinders it, though Wait goes on to end in time.
func (w *Watch) Add() error {
	if w.watcher == nil {
		return fmt.Errorf("watch files, polling instead: %w", w.err)
	}
	var errs []error
	for _, p := range w.paths {
		w.watchedPaths[p] = true
		dirs := []string{filepath.Dir(p)}
		if info, err := os.Stat(p); err == nil && info.IsDir() {
			dirs = append(dirs, p)
		}
		// A link's target can change where it is.
		if real, err := filepath.EvalSymlinks(p); err == nil && filepath.Dir(real) != filepath.Dir(p) {
			w.watchedPaths[filepath.Dir(real)] = true
			dirs = append(dirs, filepath.Dir(real))
		}
		for _, dir := range dirs {
			if err := w.watcher.Add(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("watch %s, polling instead: %w", dir, err))
			}
		}
	}
	return errors.Join(errs...)
}

// concerns reports that an event can concern one of the paths. The names that start
// with two dots are those that mounted volumes swap.
func (w *Watch) concerns(e fsnotify.Event) bool {
	name := filepath.Clean(e.Name)
	return w.watchedPaths[name] || w.watchedPaths[filepath.Dir(name)] || strings.HasPrefix(filepath.Base(name), "..")
}

// Wait returns true when it is time to look again: something changed and has
// come to rest, d is over, or somebody kicked. It returns false when ctx ends.
func (w *Watch) Wait(ctx context.Context, d time.Duration) bool {
	var events chan fsnotify.Event
	var errs chan error
	if w.watcher != nil {
		events, errs = w.watcher.Events, w.watcher.Errors
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	var deadline time.Time
	debounce := func() {
		now := time.Now()
		if deadline.IsZero() {
			deadline = now.Add(maxWait)
		}
		timer.Reset(min(quietPeriod, deadline.Sub(now)))
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-w.kick:
			return true
		case e, ok := <-events:
			if !ok {
				events = nil
			} else if w.concerns(e) {
				debounce()
			}
		case _, ok := <-errs:
			if !ok {
				errs = nil
			} else { // events were lost
				debounce()
			}
		}
	}
}
