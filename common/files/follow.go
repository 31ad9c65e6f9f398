// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package files reads regular files safely, decodes their text, and watches files for
// changes. The meaning of the content is left to the callers.
package files

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// The times of a Follower.
const (
	// FollowInterval is the interval of checks if the file cannot be watched.
	FollowInterval = 10 * time.Second
	// stableTime is how long a file must stay unchanged: editors empty one before they write.
	stableTime = 200 * time.Millisecond
	// stableMaxWait bounds the wait for a stable file.
	stableMaxWait = 10 * stableTime
)

// Content is the content of a file, or why it cannot be read.
type Content struct {
	Data []byte
	Err  error
	// Key is equal for equal content and for equal errors.
	Key string
}

// NewContent returns the Content for the result of a read.
func NewContent(data []byte, err error) Content {
	if err != nil {
		return Content{Err: err, Key: "error: " + err.Error()}
	}
	sum := sha256.Sum256(data)
	return Content{Data: data, Key: string(sum[:])}
}

// Follower reads a file whenever it changes, once its content is stable.
type Follower struct {
	Path string
	// Read reads the file.
	Read func() ([]byte, error)
	// Key is that of the content that Changed received last, at first of what the caller knows.
	Key string
	// Changed receives new content. Its error ends Run.
	Changed func(context.Context, Content) error
	// Signals makes Run read the file at once, and pass it to Changed even if it is the same.
	Signals <-chan os.Signal
	// WatchFailed receives why changes are noticed late, once for each reason.
	WatchFailed func(error)

	watchError string // the latest reason
}

// Run follows the file until ctx ends, or Changed returns an error.
func (f *Follower) Run(ctx context.Context) error {
	w := NewWatch(f.Path)
	defer w.Close()
	for check := f.Check; ; {
		f.reportWatchError(w.Add())
		if err := check(ctx); err != nil {
			return err
		}
		now, more := f.wait(ctx, w)
		if !more {
			return nil
		}
		if check = f.Check; now {
			check = f.CheckNow
		}
	}
}

// wait returns when to check the file; now is whether a signal asked, more is false after ctx.
func (f *Follower) wait(ctx context.Context, w *Watch) (now, more bool) {
	done := make(chan struct{})
	requested := make(chan bool, 1)
	go func() {
		select {
		case <-f.Signals:
			requested <- true
			w.Kick()
		case <-done:
			requested <- false
		}
	}()
	more = w.Wait(ctx, FollowInterval)
	close(done)
	return <-requested, more
}

func (f *Follower) reportWatchError(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != f.watchError {
		f.WatchFailed(err)
	}
	f.watchError = text
}

// Check passes the file to Changed if it changed.
func (f *Follower) Check(ctx context.Context) error {
	c, stable := f.readStable(ctx)
	if !stable || c.Key == f.Key {
		return nil
	}
	return f.pass(ctx, c)
}

// CheckNow passes the file to Changed, even if it is the same.
func (f *Follower) CheckNow(ctx context.Context) error { return f.pass(ctx, NewContent(f.Read())) }

func (f *Follower) pass(ctx context.Context, c Content) error {
	f.Key = c.Key
	return f.Changed(ctx, c)
}

// readStable returns the content once it is stable, or false if it is not.
func (f *Follower) readStable(ctx context.Context) (Content, bool) {
	c := NewContent(f.Read())
	for start := time.Now(); c.Key != f.Key && time.Since(start) < stableMaxWait; {
		select {
		case <-ctx.Done():
			return c, false
		case <-time.After(stableTime):
		}
		again := NewContent(f.Read())
		if again.Key == c.Key {
			return c, true
		}
		c = again
	}
	return c, c.Key == f.Key
}

const (
	// quietPeriod is the time without events that ends a change. One save causes several
	// events, and a file that is renamed away returns soon.
	quietPeriod = 15 * time.Millisecond
	// maxWait bounds that wait, for a process that never stops writing.
	maxWait = 500 * time.Millisecond
)

// Watch detects changes of files and directories. It watches the directories that contain
// them, inotify(7), so that it survives renames and swapped symlinks, as in mounted
// volumes. All methods except Kick are for one goroutine.
type Watch struct {
	paths        []string
	watcher      *fsnotify.Watcher // nil if the system provides none
	err          error             // why watcher is nil
	watchedPaths map[string]bool   // directories in which every event matters
	kick         chan struct{}
}

// NewWatch returns a Watch of paths, which need not exist. It detects nothing before Add.
func NewWatch(paths ...string) *Watch {
	w := &Watch{watchedPaths: map[string]bool{}, kick: make(chan struct{}, 1)}
	for _, p := range paths {
		w.paths = append(w.paths, filepath.Clean(p))
	}
	w.watcher, w.err = fsnotify.NewWatcher()
	return w
}

// Close releases the watcher.
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

// Add watches the present targets of the paths. Call it before each read of the files. It
// returns an error if watching is impossible; Wait still returns after its duration.
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
		// The target of a link can change in its own directory.
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

// concerns reports whether an event may concern one of the paths. Mounted volumes swap
// names that start with two dots: kubernetes: pkg/volume/util/atomic_writer.go.
func (w *Watch) concerns(e fsnotify.Event) bool {
	name := filepath.Clean(e.Name)
	return w.watchedPaths[name] || w.watchedPaths[filepath.Dir(name)] || strings.HasPrefix(filepath.Base(name), "..")
}

// Wait returns true when to read again: a change has settled, d is over, or Kick was called.
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
