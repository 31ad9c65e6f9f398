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
	// reloadPoll is how long a change may go unnoticed where nobody tells.
	reloadPoll = 10 * time.Second
	// reloadRest is how long a file must stay as it is to be taken for
	// complete: editors empty a file before they write it.
	reloadRest = 200 * time.Millisecond
	// reloadPatience is how long that is waited for.
	reloadPatience = 10 * reloadRest
)

// reloader follows the file of --config. What it says is checked as at the
// start, compared with what is in force and taken in where that can be done.
type reloader struct {
	options   *options
	force     *effective
	observers *observers
	servers   *servers
	loops     []*reconcile.Loop
	mode      string           // in force
	wish      modeWish         // that led to it
	asked     <-chan os.Signal // to look now
	log       klog.Logger

	seen    string // the key of the content that was judged last, at first by the start
	watched string // what hinders watching
}

// run follows the file until ctx ends, or until a change needs a new process,
// which is errRestart. SIGHUP asks for a look at once.
func (r *reloader) run(ctx context.Context) error {
	r.observers.metrics.Loaded(time.Now())
	path := r.options.config.Config
	if path == "" {
		return nil
	}
	w := filewatch.NewWatch(path)
	defer w.Close()
	for now := false; ; {
		r.hindered(w.Add())
		if err := r.look(ctx, now); err != nil {
			return err
		}
		var more bool
		if now, more = wait(ctx, w, r.asked); !more {
			return nil
		}
	}
}

// hangups returns where SIGHUPs arrive if there is a file to read again, and
// what gives them back. Unheard, one would end the process.
func hangups(o *options) (asked <-chan os.Signal, forget func()) {
	if o.config.Config == "" {
		return nil, func() {}
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c, func() { signal.Stop(c) }
}

// wait returns when it is time to look again, and whether somebody asked for
// that, or more as false when ctx ends.
func wait(ctx context.Context, w *filewatch.Watch, asked <-chan os.Signal) (now, more bool) {
	done := make(chan struct{})
	heard := make(chan bool, 1)
	go func() {
		select {
		case <-asked:
			heard <- true
			w.Kick()
		case <-done:
			heard <- false
		}
	}()
	more = w.Wait(ctx, reloadPoll)
	close(done)
	return <-heard, more
}

// hindered logs once why changes are noticed later than they could be.
func (r *reloader) hindered(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != r.watched {
		r.log.Info("The configuration file is only looked at now and then", "file", r.force.file, "every", reloadPoll, "err", text)
	}
	r.watched = text
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

// settled returns what the file holds once it is at rest, or false if it is
// not.
func (r *reloader) settled(ctx context.Context) (content, bool) {
	c := r.read()
	for start := time.Now(); c.key != r.seen && time.Since(start) < reloadPatience; {
		select {
		case <-ctx.Done():
			return c, false
		case <-time.After(reloadRest):
		}
		again := r.read()
		if again.key == c.key {
			return c, true
		}
		c = again
	}
	return c, c.key == r.seen
}

// look judges the file if it changed, or in any case if now.
func (r *reloader) look(ctx context.Context, now bool) error {
	var file content
	if now {
		file = r.read()
	} else {
		var still bool
		if file, still = r.settled(ctx); !still || file.key == r.seen {
			return nil
		}
	}
	r.seen = file.key
	c, err := (*config.Config)(nil), file.err
	if err == nil {
		c, err = config.LoadFrom(&r.options.config, hostOS, file.data)
	}
	if err == nil {
		err = mistakes(r.newWarnings(c))
	}
	if err != nil {
		r.reject(err)
		return nil
	}
	if c.Mode == r.wish.configured { // the same wish leads to the same mode
		c = r.resolved(c)
	}
	return r.take(ctx, c, config.Diff(r.force.config(), c, r.use()))
}

// newWarnings returns those of c that the configuration in force has not. A start
// passes over them, so that the node has a proxy; a reload does not, as a field that
// is misspelt would take back what the proxy has in force.
func (r *reloader) newWarnings(c *config.Config) []*config.FieldError {
	old := r.force.config().Warnings
	return slices.DeleteFunc(slices.Clone(c.Warnings), func(w *config.FieldError) bool {
		return slices.ContainsFunc(old, func(o *config.FieldError) bool { return o.Path == w.Path && o.Text == w.Text })
	})
}

func mistakes(all []*config.FieldError) error {
	var errs []error
	for _, w := range all {
		errs = append(errs, w)
	}
	return errors.Join(errs...)
}

func (r *reloader) use() config.Use {
	return config.Use{Mode: modeNamed(r.mode), APIServer: len(r.options.manifests) == 0}
}

// reject keeps what is in force.
func (r *reloader) reject(err error) {
	r.force.refuse(err)
	r.show(err.Error(), metrics.Rejected)
	r.log.Error(err, "The configuration file cannot be used; what is in force stays", "file", r.force.file)
}

// show comes before what is logged of the same: who reads that and goes to look
// finds it.
func (r *reloader) show(condition string, what metrics.Reload) {
	r.observers.health.SetCondition(reloadCondition, condition)
	r.observers.metrics.Reloaded(what, time.Now())
}

// reloadCondition is the name of the condition that the file cannot be used.
const reloadCondition = "configuration"
