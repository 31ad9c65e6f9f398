// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
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

// The commands for trials.
const (
	conformanceCommand = "conformance"
	changesCommand     = "changes"
	pagesCommand       = "pages"
)

// trial is what conformance and changes have in common: clusters that last as long as the
// command, and the document that gets the results.
type trial struct {
	proxyFlags
	virtual
	json, page string
	only       string
	keep       bool
	more       []string // archives of images
	earlier    string   // folder of an earlier chart
	rate       int      // of new connections, see nodes.Cluster
}

// addDocument adds the flags that say where results go.
func (t *trial) addDocument(flags *flag.FlagSet) {
	flags.StringVar(&t.json, "json", "docs/conformance.json", "file with all results; empty keeps none")
	flags.StringVar(&t.page, "page", "docs/conformance.md", "page that is made of it")
}

func (t *trial) parse(name string, args, known []string, more func(*flag.FlagSet)) error {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	t.proxyFlags.add(flags)
	t.virtual.add(flags)
	t.addDocument(flags)
	flags.StringVar(&t.only, "only", "", "which ones, with commas between them; empty takes all, and of the selections of conformance network")
	flags.BoolVar(&t.keep, "keep", false, "leave the cluster there; another one cannot follow")
	more(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, one := range strings.Split(t.only, ",") {
		if t.only != "" && !slices.Contains(known, one) {
			return fmt.Errorf("-only: there is no %q; want some of %s", one, strings.Join(known, ","))
		}
	}
	return nil
}

func (t *trial) wants(name string) bool {
	return t.only == "" || slices.Contains(strings.Split(t.only, ","), name)
}

func (t *trial) record(run *nodes.Run, change *nodes.Change) error {
	if t.json == "" || t.network != "" || t.port != 0 { // the page does not tell these from others
		return nil
	}
	return nodes.Update(t.json, t.page, run, change)
}

// start is the proxy that a cluster has at first.
type start int

const (
	ours start = iota
	known
	embedded
)

// usual is how many nodes a cluster has.
const usual = 3

// assemble makes what a cluster consists of, or finds it where it was made.
func (t *trial) assemble(ctx context.Context, count int) (*nodes.Cluster, error) {
	if t.parts != "" {
		return nodes.OpenParts(os.Stdout, t.parts, count)
	}
	c, err := t.build(ctx, count)
	if err == nil {
		c.Archives = append(c.Archives, t.more...)
	}
	return c, err
}

// in runs fn in a new cluster of some nodes with a proxy, and removes the cluster.
func (t *trial) in(ctx context.Context, first start, count int, fn func(*nodes.Cluster) error) (err error) {
	c, err := t.assemble(ctx, count)
	if err != nil {
		return err
	}
	c.Rate = t.rate
	if first == embedded {
		c.Embedded = nodes.KnownMode(t.chart.Mode)
	}
	defer func() {
		if !t.keep && !errors.Is(err, nodes.ErrThere) { // that one is not ours
			err = errors.Join(err, c.Down())
		}
	}()
	if err := nodes.Up(ctx, os.Stdout, c); err != nil {
		return err
	}
	if first == ours {
		err = c.Install(ctx, t.chart)
	} else {
		err = c.InstallKnown(ctx, nodes.KnownMode(t.chart.Mode))
	}
	if err != nil {
		return err
	}
	return fn(c)
}

func conformance(ctx context.Context, args []string) error {
	var t trial
	proxy, part, procs := bothProxies, nodes.Part{}, 0
	var all []string
	for _, s := range nodes.Selections {
		all = append(all, s.Name)
	}
	err := t.parse(conformanceCommand, args, all, func(flags *flag.FlagSet) {
		flags.Func("proxy", "ours, known or both: whose results (default both)", func(text string) error {
			proxy = text
			if text != bothProxies && !slices.ContainsFunc(contenders, func(c contender) bool { return c.flag == text }) {
				return errors.New("want ours, known or both")
			}
			return nil
		})
		flags.Func("part", "a part of each selection, such as 2/3; the sum counts when all parts are there", func(text string) (err error) {
			part, err = nodes.ParsePart(text)
			return err
		})
		flags.IntVar(&procs, "procs", 4, "how many specs at a time")
	})
	if err != nil {
		return err
	}
	if t.wanted(t.chart.Mode) {
		return t.inMachine(ctx, conformanceCommand, args)
	}
	var failed error
	for _, x := range contenders {
		if proxy != bothProxies && proxy != x.flag {
			continue
		}
		if x.first == known && nodes.KnownMode(t.chart.Mode) != t.chart.Mode {
			fmt.Printf("%s has no mode %s\n", x.name, t.chart.Mode)
			continue
		}
		for _, s := range nodes.Selections {
			if t.only == "" && s.Name != "network" || !t.wants(s.Name) {
				continue
			}
			run := nodes.Run{Proxy: x.name, Mode: t.chart.Mode, Selection: s.Name, Part: part, On: time.Now().UTC(), SocketAcceleration: x.first == ours && t.chart.SocketAcceleration}
			err := t.in(ctx, x.first, cmp.Or(s.Nodes, usual), func(c *nodes.Cluster) error { return t.conform(ctx, c, s, procs, &run) })
			if err != nil {
				return errors.Join(failed, err)
			}
			if n := len(run.Unexpected()); n > 0 && x.first == ours {
				failed = errors.Join(failed, fmt.Errorf("mode %s: %d specs of selection %s failed", run.Mode, n, s.Name))
			}
		}
	}
	return failed
}

// contender is a proxy whose results are compared with those of the other one.
type contender struct {
	flag  string // the value of -proxy
	name  string // in the results
	first start
}

var contenders = []contender{{"known", "kube-proxy", known}, {"ours", "kubeproxy", ours}}

// bothProxies is the value of -proxy for all contenders.
const bothProxies = "both"

// logFolder has the logs of the tests of Kubernetes.
const logFolder = "build/.cache/conformance"

// conform runs a selection, prints and records what became of it.
func (t *trial) conform(ctx context.Context, c *nodes.Cluster, s nodes.Selection, procs int, run *nodes.Run) error {
	name := run.Proxy + "-" + run.Mode + "-" + s.Name
	if run.Part.Count > 0 {
		name += fmt.Sprintf("-%d-of-%d", run.Part.Number, run.Part.Count)
	}
	folder, err := filepath.Abs(filepath.Join(filepath.FromSlash(logFolder), name))
	if err != nil {
		return err
	}
	if run.Results, err = c.Conformance(ctx, s, run.Part, procs, folder); err != nil {
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
	var s nodes.Setting
	image := ""
	err := t.parse(changesCommand, args, nodes.Names(), func(flags *flag.FlagSet) {
		flags.StringVar(&s.Earlier.Folder, "earlier-chart", "", "folder of the chart of an earlier version")
		flags.StringVar(&image, "earlier-image", "", "archive of its image")
		flags.StringVar(&s.Earlier.Tag, "earlier-tag", "", "tag of its image")
		flags.IntVar(&t.rate, "rate", 0, "new connections a second of each client; 0 takes 50, and 5 in a virtual machine")
		flags.DurationVar(&s.Silence, "silence", 10*time.Minute, "how long the API server does not answer")
	})
	if err != nil {
		return err
	}
	switch {
	case t.rate < 0:
		return fmt.Errorf("-rate %d: want connections a second, or 0", t.rate)
	case s.Silence <= 0:
		return fmt.Errorf("-silence %s: want a time of more than 0", s.Silence)
	}
	s.Chart, s.Earlier.Repository, s.Earlier.Mode = t.chart, t.chart.Repository, t.chart.Mode
	if image != "" {
		if image, err = filepath.Abs(image); err != nil {
			return err
		}
		t.more = []string{image}
	}
	t.earlier = s.Earlier.Folder
	if t.wanted(t.chart.Mode) {
		return t.inMachine(ctx, changesCommand, args)
	}
	var errs []error
	for _, all := range nodes.Sequences {
		wanted, err := all.Select(t.wants)
		if err != nil {
			return fmt.Errorf("-only: %w", err)
		}
		if len(wanted.Trials) > 0 {
			errs = append(errs, t.changesOf(ctx, wanted, s))
		}
	}
	return errors.Join(errs...)
}

// changesOf makes the changes of a sequence in one cluster.
func (t *trial) changesOf(ctx context.Context, sequence nodes.Sequence, s nodes.Setting) error {
	first := ours
	switch {
	case sequence.Embedded:
		first = embedded
	case t.wants(nodes.Sequences[0].Trials[0].Name):
		first = known
	}
	return t.in(ctx, first, usual, func(c *nodes.Cluster) error {
		var errs []error
		for _, trial := range sequence.Trials {
			change, err := c.Try(ctx, trial, s)
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			errs = append(errs, trial.Judge(change), t.record(nil, &change))
		}
		return errors.Join(errs...)
	})
}

// pages types pages in a new cluster.
func pages(ctx context.Context, args []string) error {
	var t trial
	p := nodes.Pages{Docs: "docs", Deploy: "build/deploy"}
	err := t.parse(pagesCommand, args, nodes.PageParts, func(flags *flag.FlagSet) {
		flags.StringVar(&p.Program, "program", "bin/kube-proxy", "kube-proxy on the machine of the user")
	})
	if err == nil {
		p.Image, err = t.archive()
	}
	if err == nil {
		p.Program, err = filepath.Abs(p.Program)
	}
	if err == nil {
		t.chart.Folder, err = filepath.Abs(t.chart.Folder)
	}
	if err != nil {
		return err
	}
	p.Chart = t.chart
	return t.in(ctx, known, usual, func(c *nodes.Cluster) error { return c.TypePages(ctx, p, t.wants) })
}

// page writes the page again, from what is known, and what is newer in more documents.
func page(_ context.Context, args []string) error {
	var t trial
	flags := flag.NewFlagSet("page", flag.ContinueOnError)
	t.addDocument(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, file := range flags.Args() {
		if _, err := os.Stat(file); err != nil {
			return err
		}
		if err := nodes.Merge(t.json, t.page, file); err != nil {
			return err
		}
	}
	return t.record(nil, nil)
}
