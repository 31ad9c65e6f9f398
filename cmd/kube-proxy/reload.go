// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	filewatch "kubeproxy/common/files"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/config"
)

// errRestart ends the proxy, so that a new process loads a configuration that this one
// cannot apply.
var errRestart = errors.New("the configuration needs a new process")

// The times of a reloader.
const (
	// reloadInterval is how long a change may go unnoticed if watching the file fails.
	reloadInterval = 10 * time.Second
	// reloadStableTime is how long a file must stay unchanged before it counts as
	// complete: editors empty a file before they write it.
	reloadStableTime = 200 * time.Millisecond
	// reloadMaxWait bounds the wait for a stable file.
	reloadMaxWait = 10 * reloadStableTime
)

// reloader follows the file of --config. It validates the content as a start does,
// compares it with the configuration in force, and applies it if that is possible.
type reloader struct {
	options     *options
	active      *activeConfig
	reporter    *statusReporter
	servers     *servers
	loops       []*reconcile.Loop
	mode        string           // in force
	modeRequest modeRequest      // led to mode
	hangup      <-chan os.Signal // check now
	log         klog.Logger

	lastKey    string // the key of the content that was checked last, at first by the start
	watchError string // why watching fails
}

// run follows the file until ctx ends. It returns errRestart if a change requires a new
// process. SIGHUP triggers a check at once.
func (r *reloader) run(ctx context.Context) error {
	r.reporter.metrics.Loaded(time.Now())
	path := r.options.config.Config
	if path == "" {
		return nil
	}
	w := filewatch.NewWatch(path)
	defer w.Close()
	for now := false; ; {
		r.reportWatchError(w.Add())
		if err := r.check(ctx, now); err != nil {
			return err
		}
		var more bool
		if now, more = waitForChange(ctx, w, r.hangup); !more {
			return nil
		}
	}
}

// notifyHangup returns a channel of SIGHUPs, if there is a file to read again, and a
// function that ends the subscription. Without a subscription, SIGHUP would end the
// process, see os/signal.
func notifyHangup(o *options) (hangup <-chan os.Signal, stop func()) {
	if o.config.Config == "" {
		return nil, func() {}
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c, func() { signal.Stop(c) }
}

// waitForChange returns when the file is to be checked. now is whether a signal requested
// it; more is false when ctx ends.
func waitForChange(ctx context.Context, w *filewatch.Watch, hangup <-chan os.Signal) (now, more bool) {
	done := make(chan struct{})
	requested := make(chan bool, 1)
	go func() {
		select {
		case <-hangup:
			requested <- true
			w.Kick()
		case <-done:
			requested <- false
		}
	}()
	more = w.Wait(ctx, reloadInterval)
	close(done)
	return <-requested, more
}

// reportWatchError logs once why changes are noticed late.
func (r *reloader) reportWatchError(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != r.watchError {
		r.log.Info("The configuration file is only looked at now and then", "file", r.active.file, "every", reloadInterval, "err", text)
	}
	r.watchError = text
}

// content is the content of a file, or why it cannot be read.
type content struct {
	data []byte
	err  error
	key  string // equal for equal content
}

func (r *reloader) read() content { return readContent(&r.options.config) }

func readContent(flags *config.Flags) content {
	data, err := flags.ReadFile()
	if err != nil {
		return content{err: err, key: "error: " + err.Error()}
	}
	sum := sha256.Sum256(data)
	return content{data: data, key: string(sum[:])}
}

// readStable returns the content once it is stable, or false if it is not.
func (r *reloader) readStable(ctx context.Context) (content, bool) {
	c := r.read()
	for start := time.Now(); c.key != r.lastKey && time.Since(start) < reloadMaxWait; {
		select {
		case <-ctx.Done():
			return c, false
		case <-time.After(reloadStableTime):
		}
		again := r.read()
		if again.key == c.key {
			return c, true
		}
		c = again
	}
	return c, c.key == r.lastKey
}

// check validates the file if it changed, and in any case if now is true.
func (r *reloader) check(ctx context.Context, now bool) error {
	var file content
	if now {
		file = r.read()
	} else {
		var stable bool
		if file, stable = r.readStable(ctx); !stable || file.key == r.lastKey {
			return nil
		}
	}
	r.lastKey = file.key
	c, err := (*config.Config)(nil), file.err
	if err == nil {
		c, err = config.LoadFrom(&r.options.config, hostOS, file.data)
	}
	if err == nil {
		err = joinErrors(r.newWarnings(c))
	}
	if err != nil {
		r.reject(err)
		return nil
	}
	if c.Mode == r.modeRequest.configured { // the same request leads to the same mode
		c = r.withMode(c)
	}
	return r.adopt(ctx, c, config.Diff(r.active.config(), c, r.use()))
}

// newWarnings returns the warnings of c that the configuration in force does not have. A
// start tolerates warnings, so that the node has a proxy. A reload does not: a misspelt
// field would undo a setting that is in force.
func (r *reloader) newWarnings(c *config.Config) []*config.FieldError {
	old := r.active.config().Warnings
	return slices.DeleteFunc(slices.Clone(c.Warnings), func(w *config.FieldError) bool {
		return slices.ContainsFunc(old, func(o *config.FieldError) bool { return o.Path == w.Path && o.Text == w.Text })
	})
}

func joinErrors(all []*config.FieldError) error {
	var errs []error
	for _, w := range all {
		errs = append(errs, w)
	}
	return errors.Join(errs...)
}

func (r *reloader) use() config.Use {
	return config.Use{Mode: proxyMode(r.mode), APIServer: len(r.options.manifests) == 0}
}

// reject keeps the configuration in force.
func (r *reloader) reject(err error) {
	r.active.setFileError(err)
	r.setCondition(err.Error(), metrics.Rejected)
	r.log.Error(err, "The configuration file cannot be used; what is in force stays", "file", r.active.file)
}

// setCondition is called before the log line about the same fact, so that a reader of the
// log finds the condition.
func (r *reloader) setCondition(condition string, what metrics.Reload) {
	r.reporter.health.SetCondition(reloadCondition, condition)
	r.reporter.metrics.Reloaded(what, time.Now())
}

// reloadCondition is the name of the condition for a file that cannot be used.
const reloadCondition = "configuration"
