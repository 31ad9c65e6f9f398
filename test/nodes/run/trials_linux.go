// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"kubeproxy/test/nodes"
)

// trial is what changes are tried in: a cluster that lasts as long as the command, and the
// document that gets the results.
type trial struct {
	proxyFlags
	json, page string
	only       string
	keep       bool
}

func (t *trial) parse(name string, args []string) error {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	t.add(flags)
	flags.StringVar(&t.json, "json", "docs/changes.json", "file with all results; empty keeps none")
	flags.StringVar(&t.page, "page", "docs/changes.md", "page that is made of it")
	flags.StringVar(&t.only, "only", "", "which ones, with commas between them; empty takes all")
	flags.BoolVar(&t.keep, "keep", false, "leave the last cluster there")
	return flags.Parse(args)
}

func (t *trial) wants(name string) bool {
	return t.only == "" || slices.Contains(strings.Split(t.only, ","), name)
}

func (t *trial) record(change *nodes.Change) error {
	if t.json == "" {
		return nil
	}
	return nodes.Update(t.json, t.page, change)
}

// in runs fn in a new cluster with a proxy, and removes the cluster.
func (t *trial) in(ctx context.Context, known bool, fn func(*nodes.Cluster) error) (err error) {
	c, err := t.build(ctx, 3)
	if err != nil {
		return err
	}
	defer func() {
		if !t.keep {
			err = errors.Join(err, c.Down())
		}
	}()
	if err := nodes.Up(ctx, os.Stdout, c); err != nil {
		return err
	}
	if known {
		err = c.InstallKnown(ctx, t.chart.Mode)
	} else {
		err = c.Install(ctx, t.chart)
	}
	if err != nil {
		return err
	}
	return fn(c)
}

func changes(ctx context.Context, args []string) error {
	var t trial
	if err := t.parse("changes", args); err != nil {
		return err
	}
	first, last := nodes.Trials[0].Name, nodes.Trials[len(nodes.Trials)-1].Name
	if t.wants(last) && !t.wants(first) {
		return fmt.Errorf("-only: %s goes back to what %s finds; add that", last, first)
	}
	return t.in(ctx, t.wants(first), func(c *nodes.Cluster) error {
		var errs []error
		for _, trial := range nodes.Trials {
			if !t.wants(trial.Name) {
				continue
			}
			change, err := c.Try(ctx, trial, t.chart)
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			change.Version, change.Kernel = t.chart.Tag, nodes.Kernel()
			if err := t.record(&change); err != nil {
				return err
			}
			if n := change.Lost(); n > 0 && !trial.Lossy {
				errs = append(errs, fmt.Errorf("%s: %d connections were lost", trial.About, n))
			}
		}
		return errors.Join(errs...)
	})
}
