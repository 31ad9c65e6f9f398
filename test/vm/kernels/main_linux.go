// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"kubeproxy/test/vm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

// outcomes are by kernel and then by suite.
type outcomes map[string]map[string]outcome

func run(ctx context.Context, args []string) error {
	var names []string
	for _, s := range suites {
		names = append(names, s.name)
	}
	flags := flag.NewFlagSet("kernels", flag.ContinueOnError)
	some := flags.String("suites", "", "run only these of "+strings.Join(names, ","))
	on := flags.String("kernels", "", "run only on these of "+strings.Join(vm.Kernels, ","))
	runner := flags.String("runner", "", "the program of test/vm/run; required")
	memory := flags.String("memory", "docs/kernels.json", "where outcomes are kept from run to run")
	page := flags.String("o", "docs/kernels.md", "the page to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := choose("suite", *some, names)
	if err != nil {
		return err
	}
	kernels, err := choose("kernel", *on, vm.Kernels)
	if err != nil {
		return err
	}
	all, err := loadOutcomes(*memory)
	if err != nil {
		return err
	}
	if *runner, err = filepath.Abs(*runner); err != nil {
		return err
	}
	var errs []error
	for _, k := range kernels {
		for _, s := range suites {
			if ctx.Err() == nil && slices.Contains(wanted, s.name) {
				errs = append(errs, all.runSuite(ctx, s, k, *runner))
			}
			errs = append(errs, all.save(*memory), os.WriteFile(*page, []byte(all.page()), 0o644))
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// choose parses a list separated by commas. An empty one selects all known names.
func choose(what, list string, known []string) ([]string, error) {
	if list == "" {
		return known, nil
	}
	chosen := strings.Split(list, ",")
	for _, name := range chosen {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s %q: must be one of %s", what, name, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}

// runSuite runs a suite and records its outcome.
func (all outcomes) runSuite(ctx context.Context, s suite, kernel, runner string) error {
	o, err := s.runOn(ctx, runner, kernel, os.Stdout)
	if ctx.Err() != nil {
		return nil // it is not a result of the suite
	}
	if all[kernel] == nil {
		all[kernel] = map[string]outcome{}
	}
	all[kernel][s.name] = o
	if err == nil && o.Failed > 0 {
		err = fmt.Errorf("suite %s on kernel %s: %d tests failed", s.name, kernel, o.Failed)
	}
	return err
}

func loadOutcomes(file string) (outcomes, error) {
	all := outcomes{}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read earlier outcomes: %w", err)
	}
	return all, nil
}

func (all outcomes) save(file string) error {
	text, err := json.MarshalIndent(all, "", "\t")
	return errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, text, 0o644))
}
