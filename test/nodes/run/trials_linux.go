// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kubeproxy/test/nodes"
)

// trial is what conformance and changes have in common: clusters that last as long as the
// command, and the document that gets the results.
type trial struct {
	proxyFlags
	json, page string
	only       string
	keep       bool
}

func (t *trial) parse(name string, args []string, more func(*flag.FlagSet)) error {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	t.add(flags)
	flags.StringVar(&t.json, "json", "docs/conformance.json", "file with all results; empty keeps none")
	flags.StringVar(&t.page, "page", "docs/conformance.md", "page that is made of it")
	flags.StringVar(&t.only, "only", "", "which ones, with commas between them; empty takes all")
	flags.BoolVar(&t.keep, "keep", false, "leave the last cluster there")
	if more != nil {
		more(flags)
	}
	return flags.Parse(args)
}

func (t *trial) wants(name string) bool {
	return t.only == "" || slices.Contains(strings.Split(t.only, ","), name)
}

func (t *trial) record(run *nodes.Run, change *nodes.Change) error {
	if t.json == "" {
		return nil
	}
	return nodes.Update(t.json, t.page, run, change)
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

func conformance(ctx context.Context, args []string) error {
	var t trial
	proxy, procs := "", 0
	err := t.parse("conformance", args, func(flags *flag.FlagSet) {
		flags.StringVar(&proxy, "proxy", "both", "ours, known or both: whose results")
		flags.IntVar(&procs, "procs", 4, "how many specs at a time")
	})
	if err != nil {
		return err
	}
	var failed error
	for _, name := range []string{"kube-proxy", "kubeproxy"} {
		known := name == "kube-proxy"
		if proxy == "ours" && known || proxy == "known" && !known {
			continue
		}
		for _, s := range nodes.Selections {
			if t.only == "" && s.Name != "network" || !t.wants(s.Name) {
				continue
			}
			run := nodes.Run{Proxy: name, Mode: t.chart.Mode, Selection: s.Name, On: time.Now().UTC()}
			err := t.in(ctx, known, func(c *nodes.Cluster) error { return t.conform(ctx, c, s, procs, &run) })
			if err != nil {
				return err
			}
			if n := len(run.Failed); n > 0 && !known {
				failed = errors.Join(failed, fmt.Errorf("mode %s: %d specs of selection %s failed", run.Mode, n, s.Name))
			}
		}
	}
	return failed
}

// conform runs a selection, prints and records what became of it.
func (t *trial) conform(ctx context.Context, c *nodes.Cluster, s nodes.Selection, procs int, run *nodes.Run) error {
	folder, err := filepath.Abs(filepath.Join("build", ".cache", "conformance", run.Proxy+"-"+run.Mode+"-"+s.Name))
	if err != nil {
		return err
	}
	if run.Results, err = c.Conformance(ctx, s, procs, folder); err != nil {
		return err
	}
	if run.Kubernetes, err = c.Version(ctx); err != nil {
		return err
	}
	run.Kernel, run.Version = nodes.Kernel(), t.chart.Tag
	if run.Proxy == "kube-proxy" {
		run.Version = run.Kubernetes
	}
	fmt.Printf("%s in mode %s, selection %s: %d passed, %d failed, %d skipped, in %s\n", run.Proxy, run.Mode, s.Name, run.Passed, len(run.Failed), len(run.Skipped), run.Took)
	for _, f := range run.Failed {
		fmt.Printf("  failed: %s: %s\n", f.Name, f.Message)
	}
	return t.record(run, nil)
}

func changes(ctx context.Context, args []string) error {
	var t trial
	if err := t.parse("changes", args, nil); err != nil {
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
			if err := t.record(nil, &change); err != nil {
				return err
			}
			if n := change.Lost(); n > 0 && !trial.Lossy {
				errs = append(errs, fmt.Errorf("%s: %d connections were lost", trial.About, n))
			}
		}
		return errors.Join(errs...)
	})
}
