// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"kubeproxy/test/netlab"
)

// options are the command line.
type options struct {
	proxy     string // the program
	manifests string // directory; its sister with "-rollout" has what changes
	showLog   bool
}

func main() {
	var o options
	flag.StringVar(&o.proxy, "proxy", "bin/kube-proxy", "the proxy's program")
	flag.StringVar(&o.manifests, "manifests", "docs/examples/shop", "directory of the manifests and of expected.txt")
	flag.BoolVar(&o.showLog, "log", false, "print the proxy's log at the end in any case")
	flag.Parse()
	if err := netlab.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	d := &demo{options: o, out: stdout()}
	err := d.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if err != nil || len(d.problems) > 0 {
		os.Exit(1)
	}
}

// demo is one run.
type demo struct {
	options
	out      *printer
	lab      *netlab.Lab
	dir      string // temporary: the manifests in use, and the log
	proxy    *proxy
	changed  time.Time // when the manifests in use were last touched
	problems []string  // what was not as it should be, a line each
}

// problemf notes something that was not as it should be.
func (d *demo) problemf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	d.problems = append(d.problems, line)
	d.out.line("  %s %s", d.out.bad("WRONG"), line)
}

// run goes through the whole demo. The error is something that made it stop;
// what was merely wrong is in d.problems.
func (d *demo) run(ctx context.Context) error {
	begin := time.Now()
	table, err := readTable(filepath.Join(d.manifests, "expected.txt"))
	if err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "kube-proxy-demo-"); err != nil {
		return fmt.Errorf("make temporary directory: %w", err)
	}
	defer os.RemoveAll(d.dir)
	if err := copyManifests(d.manifests, d.live()); err != nil {
		return err
	}
	if err := d.buildNetwork(); err != nil {
		return err
	}
	err = d.show(ctx, table)
	if d.proxy != nil && (err != nil || len(d.problems) > 0 || d.showLog) {
		d.out.log(d.proxy.logFile)
	}
	if closeErr := d.lab.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("remove the network: %w", closeErr)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted; everything was removed")
	}
	if err == nil {
		d.summarize(time.Since(begin))
	}
	return err
}

// show is what happens between building the network and removing it.
func (d *demo) show(ctx context.Context, table []group) error {
	for _, step := range []func(context.Context) error{
		d.startProxy,
		func(ctx context.Context) error { return d.checkTable(ctx, table) },
		d.rollOut,
		d.stopProxy,
		d.cleanUp,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// live is the directory the proxy watches.
func (d *demo) live() string { return filepath.Join(d.dir, "manifests") }

func (d *demo) summarize(took time.Duration) {
	d.out.heading("Result")
	if len(d.problems) == 0 {
		d.out.line("  %s: everything was as the manifests say, in %.1f s. Nothing is left behind.", d.out.good("ok"), took.Seconds())
		return
	}
	for _, line := range d.problems {
		d.out.line("  %s %s", d.out.bad("WRONG"), line)
	}
	d.out.line("  %d of the things shown were not as the manifests say.", len(d.problems))
}

// copyManifests copies the YAML files of a directory.
func copyManifests(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("make directory of manifests: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(from, "*.yaml"))
	if err != nil {
		return fmt.Errorf("list manifests: %w", err)
	}
	if len(files) == 0 {
		return fmt.Errorf("directory %s: no manifest (*.yaml) in it", from)
	}
	for _, file := range files {
		if err := replaceFile(file, filepath.Join(to, filepath.Base(file))); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile puts a copy of from in the place of to in one step, as careful
// editors and deployment tools do.
func replaceFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	next := to + ".next"
	if err := os.WriteFile(next, text, 0o644); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := os.Rename(next, to); err != nil {
		return fmt.Errorf("replace manifest: %w", err)
	}
	return nil
}
