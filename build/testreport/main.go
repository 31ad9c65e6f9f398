// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command testreport runs go test and shortens its result: a line for each package, the
// output of failed tests, every skipped test with its reason, the slowest tests, and the
// totals. A skipped test may count as a failure. A few failed tests may run a second
// time; the report then names those that pass. Its arguments go to go test, which decides
// everything else about the tests to run.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
)

func main() {
	passed, err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil || !passed {
		os.Exit(1)
	}
}

// settings are the arguments that are not for go test.
type settings struct {
	skips       string
	allow, owed string
	mark        string
	slowest     int
	again       int
	args        []string // for go test
}

func parse(args []string, problems io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("testreport", flag.ContinueOnError)
	flags.SetOutput(problems)
	flags.StringVar(&s.skips, "skips", "show", "what a skipped test does: show or fail")
	flags.StringVar(&s.allow, "allow", "", "file of tests that may be skipped, each with a reason")
	flags.StringVar(&s.owed, "owed", "", "file like that of -allow: run the tests whose reason begins with -mark, and want each to pass")
	flags.StringVar(&s.mark, "mark", vmMark, "how the reasons begin of the tests that -owed runs")
	flags.IntVar(&s.slowest, "slowest", 8, "how many slow tests to list at most")
	flags.IntVar(&s.again, "again", 0, "run failed tests a second time, package by package, if there are at most so many")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.skips != "show" && s.skips != "fail" {
		return s, fmt.Errorf("-skips %q: want show or fail", s.skips)
	}
	s.args = flags.Args()
	return s, nil
}

// run returns whether the tests that args name passed.
func run(args []string, out, problems io.Writer) (bool, error) {
	s, err := parse(args, problems)
	if err != nil {
		return false, err
	}
	allowed, err := readAllowed(s.allow)
	if err != nil {
		return false, err
	}
	debts, err := readAllowed(s.owed)
	if err != nil {
		return false, err
	}
	goTest := s.args
	owed := debts.requiredElsewhere(s.mark)
	if len(owed) > 0 {
		goTest = slices.Concat(s.args, selection(owed))
	} else if s.owed != "" {
		return true, nil // nothing to do
	}

	r := newReport(out, allowed)
	failed, err := r.test(goTest, problems)
	if failed && err == nil {
		failed, err = r.again(s, problems)
	}
	r.summary(s.slowest)
	unpaid := r.notPassed(owed)
	for _, t := range unpaid {
		fmt.Fprintf(out, "did not pass, though it is skipped elsewhere because it runs here: %s\n", t)
	}
	passed := !failed && r.failed == 0 && len(unpaid) == 0 && (s.skips == "show" || len(r.unlisted()) == 0)
	return passed, errors.Join(err, r.empty())
}

// test runs go test with args and reads its output. It returns whether go test failed,
// which the report explains.
func (r *report) test(args []string, problems io.Writer) (failed bool, err error) {
	test := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	test.Stderr = problems
	events, err := test.StdoutPipe()
	if err != nil {
		return true, fmt.Errorf("open a pipe for go test: %w", err)
	}
	if err := test.Start(); err != nil {
		return true, fmt.Errorf("run go test: %w", err)
	}
	readErr := r.read(events)
	runErr := test.Wait()
	if exit := new(exec.ExitError); errors.As(runErr, &exit) {
		return true, readErr
	}
	return runErr != nil, errors.Join(readErr, runErr)
}
