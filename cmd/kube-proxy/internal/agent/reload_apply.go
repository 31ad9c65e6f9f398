// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/metrics"
	"kubeproxy/config"
)

// adopt puts c in force, which differs by changes from the present configuration. It
// returns ErrRestart if that requires a new process.
func (r *reloader) adopt(ctx context.Context, c *config.Config, changes []config.Change) error {
	needed := pathsWith(changes, config.Restart)
	if len(needed) > 0 {
		if err := r.checkStartable(ctx, c); err != nil {
			r.reject(fmt.Errorf("a new process, which %s needs, could not start: %w", strings.Join(needed, ", "), err))
			return nil
		}
		r.reports.Metrics.Reloaded(metrics.Restart, time.Now())
		r.log.Info("The configuration file changed in a setting that only a new process can apply; ending, so that the supervisor starts a new one",
			"file", r.active.file, "changes", changesText(changes), "need", needed)
		return ErrRestart
	}
	if err := r.apply(ctx, c, changes); err != nil {
		r.reject(err)
		return nil
	}
	if len(changes) == 0 {
		r.setCondition("", metrics.Unchanged)
		r.log.Info("The configuration file was read again and means the same", "file", r.active.file)
		return nil
	}
	r.setCondition("", metrics.Applied)
	switch unused := pathsWith(changes, config.Unused); {
	case len(unused) == len(changes):
		r.log.Info("The configuration file changed in nothing that is in use", "file", r.active.file, "changes", changesText(changes))
	case len(unused) > 0:
		r.log.Info("The configuration file changed and is in force", "file", r.active.file, "changes", changesText(changes), "notInUse", unused)
	default:
		r.log.Info("The configuration file changed and is in force", "file", r.active.file, "changes", changesText(changes))
	}
	return nil
}

// logNew logs remarks on c that did not apply before.
func (r *reloader) logNew(c *config.Config) {
	old := r.active.config()
	fresh := *c
	fresh.Overrides = slices.DeleteFunc(slices.Clone(c.Overrides), func(o config.Override) bool { return slices.Contains(old.Overrides, o) })
	fresh.Notes = slices.DeleteFunc(slices.Clone(c.Notes), func(n config.Note) bool {
		return slices.ContainsFunc(old.Notes, func(o config.Note) bool { return o.Path == n.Path && o.Text == n.Text })
	})
	fresh.Warnings = nil // newWarnings has rejected new ones
	LogConfigIssues(r.log, &fresh)
}

// pathsWith returns the paths of the changes with an effect.
func pathsWith(changes []config.Change, e config.Effect) []string {
	var all []string
	for _, c := range changes {
		if c.Effect == e {
			all = append(all, c.Path)
		}
	}
	return all
}

func changesText(changes []config.Change) string {
	var all []string
	for _, c := range changes {
		all = append(all, c.String())
	}
	return strings.Join(all, "; ")
}

// checkStartable returns why a process with c would not start. A proxy that works must
// not end for one that cannot start.
func (r *reloader) checkStartable(ctx context.Context, c *config.Config) error {
	var discard klog.Logger
	node, err := NodeName(c)
	if err != nil {
		return err
	}
	if _, err := r.options.newSource(r.process.Build.GitVersion, c, node, newSources(r.options), discard); err != nil {
		return err
	}
	_, err = r.options.newBackends(klog.NewContext(ctx, discard), c, r.request.annotated)
	return err
}

// apply passes c to every running part that has settings in it. Only the logger may fail;
// then nothing has changed.
func (r *reloader) apply(ctx context.Context, c *config.Config, changes []config.Change) error {
	changed := func(prefix string) bool {
		return slices.ContainsFunc(changes, func(c config.Change) bool {
			return c.Effect == config.Hot && strings.HasPrefix(c.Path, prefix)
		})
	}
	if changed("logging.") {
		if err := r.process.Logs.Reconfigure(&c.Logging); err != nil {
			return err
		}
	}
	r.logNew(c)
	old, now := r.withMode(r.active.config()), r.withMode(c)
	if pace := timingOf(r.selected.Descriptor, now); pace != timingOf(r.selected.Descriptor, old) {
		for _, l := range r.loops {
			l.SetTiming(pace)
		}
		r.reports.Health.SetSyncPeriod(pace.Resync)
	}
	to := TrackOptions(r.selected.Descriptor, now, r.node)
	if changed("clusterCIDR") || changed("detectLocal") {
		warnUnknownPods(to, r.log)
	}
	r.reports.Reconfigure(to)
	r.tracker.Reconfigure(to)
	r.servers.reconfigure(ctx, c)
	r.active.set(c)
	if changed("conntrack.") || changed("oomScoreAdj") {
		r.active.requestPrepare()
	}
	return nil
}

// withMode returns c with the mode in force, which c may leave open.
func (r *reloader) withMode(c *config.Config) *config.Config {
	now := *c
	now.Mode = r.selected.Name
	return &now
}
