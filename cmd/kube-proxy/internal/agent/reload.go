// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"kubeproxy/common/condition"
	filewatch "kubeproxy/common/files"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/config"
)

// ErrRestart ends the proxy, so that a new process loads a configuration that this one
// cannot apply.
var ErrRestart = errors.New("the configuration needs a new process")

// reloader follows the file of --config. It validates the content as a start does,
// compares it with the configuration in force, and applies it if that is possible.
type reloader struct {
	*proxy
	servers *servers
	loops   []*reconcile.Loop
	hangup  <-chan os.Signal // check now
}

// run follows the file until ctx ends. It returns ErrRestart if a change requires a new
// process. SIGHUP triggers a check at once.
func (r *reloader) run(ctx context.Context) error {
	r.reports.Metrics.Loaded(time.Now())
	if r.options.Flags.Config == "" {
		return nil
	}
	return r.newFollower().Run(ctx)
}

// newFollower returns what reads the file when it changes. It knows the content that the
// start has read.
func (r *reloader) newFollower() *filewatch.Follower {
	return &filewatch.Follower{
		Path: r.options.Flags.Config, Read: r.options.Flags.ReadFile, Key: r.options.loadedKey, Changed: r.check, Signals: r.hangup,
		WatchFailed: func(err error) {
			r.log.Info("The configuration file is polled, because it cannot be watched", "file", r.active.file, "every", filewatch.FollowInterval, "err", err.Error())
		},
	}
}

// notifyHangup returns a channel of SIGHUPs, if there is a file to read again, and a
// function that ends the subscription. Without a subscription, SIGHUP would end the
// process, see os/signal.
func notifyHangup(o *Options) (hangup <-chan os.Signal, stop func()) {
	if o.Flags.Config == "" {
		return nil, func() {}
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c, func() { signal.Stop(c) }
}

// check validates the content of the file, and puts it in force if that is possible.
func (r *reloader) check(ctx context.Context, file filewatch.Content) error {
	c, err := (*config.Config)(nil), file.Err
	if err == nil {
		c, err = config.LoadFrom(&r.options.Flags, r.system.OS, file.Data)
	}
	if err == nil {
		err = joinErrors(r.newWarnings(c))
	}
	if err != nil {
		r.reject(err)
		return nil
	}
	if c.Mode == r.request.configured { // the same request leads to the same mode
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
	return config.Use{Mode: r.selected.Mode, APIServer: len(r.options.Manifests) == 0}
}

// reject keeps the configuration in force.
func (r *reloader) reject(err error) {
	r.active.setFileError(err)
	r.setCondition(err.Error(), metrics.Rejected)
	r.log.Error(err, "The configuration file cannot be used; what is in force stays", "file", r.active.file)
}

// setCondition is called before the log line about the same fact, so that a reader of the
// log finds the condition.
func (r *reloader) setCondition(text string, what metrics.Reload) {
	r.reports.Health.SetCondition(condition.Configuration, text)
	r.reports.Metrics.Reloaded(what, time.Now())
}
