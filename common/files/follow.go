// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"context"
	"crypto/sha256"
	"os"
	"time"
)

// The times of a Follower.
const (
	// FollowInterval is the interval of checks if the file cannot be watched.
	FollowInterval = 10 * time.Second
	// stableTime is how long a file must stay unchanged before it counts as complete:
	// editors empty a file before they write it.
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
	// Key is the key of the content that Changed received last, at first of the content
	// that the caller knows.
	Key string
	// Changed receives new content. Its error ends Run.
	Changed func(context.Context, Content) error
	// Signals makes Run read the file at once, and pass it to Changed even if it is the
	// same.
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

// wait returns when the file is to be checked. now is whether a signal requested it; more
// is false when ctx ends.
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
func (f *Follower) CheckNow(ctx context.Context) error {
	return f.pass(ctx, NewContent(f.Read()))
}

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
