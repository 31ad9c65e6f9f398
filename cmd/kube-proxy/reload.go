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

// errRestart ends the proxy so that another process takes in what this one
// cannot.
var errRestart = errors.New("the configuration needs a new process")

// The times of a reloader.
const (
	// reloadInterval is how long a change may go unnoticed where nobody tells.
	reloadInterval = 10 * time.Second
	// reloadStableTime is how long a file must stay as it is to be taken for
	// complete: editors empty a file before they write it.
	reloadStableTime = 200 * time.Millisecond
	// reloadMaxWait is how long that is waited for.
	reloadMaxWait = 10 * reloadStableTime
)

// reloader follows the file of --config. What it says is checked as at the
// start, compared with what is in force and taken in where that can be done.
type reloader struct {
	options     *options
	active      *activeConfig
	reporter    *statusReporter
	servers     *servers
	loops       []*reconcile.Loop
	mode        string           // in force
	modeRequest modeRequest      // that led to it
	hangup      <-chan os.Signal // to look now
	log         klog.Logger

	lastKey    string // the key of the content that was judged last, at first by the start
	watchError string // what hinders watching
}

// run follows the file until ctx ends, or until a change needs a new process,
// which is errRestart. SIGHUP asks for a look at once.
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

// notifyHangup returns where SIGHUPs arrive if there is a file to read again, and
// what gives them back. Unheard, one would end the process.
func notifyHangup(o *options) (hangup <-chan os.Signal, stop func()) {
	if o.config.Config == "" {
		return nil, func() {}
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c, func() { signal.Stop(c) }
}

// waitForChange returns when it is time to look again, and whether somebody asked for
// that, or more as false when ctx ends.
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

// reportWatchError logs once why changes are noticed later than they could be.
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

// content is what a file holds or why it cannot be read.
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

// readStable returns what the file holds once it is at rest, or false if it is
// not.
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

// check judges the file if it changed, or in any case if now.
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
	if c.Mode == r.modeRequest.configured { // the same wish leads to the same mode
		c = r.withMode(c)
	}
	return r.adopt(ctx, c, config.Diff(r.active.config(), c, r.use()))
}

// newWarnings returns those of c that the configuration in force has not. A start
// passes over them, so that the node has a proxy; a reload does not, as a field that
// is misspelt would take back what the proxy has in force.
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

// reject keeps what is in force.
func (r *reloader) reject(err error) {
	r.active.setFileError(err)
	r.setCondition(err.Error(), metrics.Rejected)
	r.log.Error(err, "The configuration file cannot be used; what is in force stays", "file", r.active.file)
}

// setCondition comes before what is logged of the same: who reads that and goes to look
// finds it.
func (r *reloader) setCondition(condition string, what metrics.Reload) {
	r.reporter.health.SetCondition(reloadCondition, condition)
	r.reporter.metrics.Reloaded(what, time.Now())
}

// reloadCondition is the name of the condition that the file cannot be used.
const reloadCondition = "configuration"
