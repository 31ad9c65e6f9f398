// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command testreport runs go test and makes its result short: a line for each
// package, the output of what failed, every skipped test with its reason, the
// slowest tests, and the totals. A skipped test may count as a failure. It
// decides nothing about which tests run: its arguments go to go test.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
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

// run reports whether the tests that args name passed.
func run(args []string, out, problems io.Writer) (bool, error) {
	flags := flag.NewFlagSet("testreport", flag.ContinueOnError)
	flags.SetOutput(problems)
	skips := flags.String("skips", "show", "what a skipped test does: show or fail")
	allow := flags.String("allow", "", "file of tests that may be skipped, each with a reason")
	owed := flags.String("owed", "", "file like that of -allow: run the tests whose reason begins with -mark, and want each to pass")
	mark := flags.String("mark", elsewhere, "how the reasons begin of the tests that -owed runs")
	slowest := flags.Int("slowest", 8, "how many slow tests to list at most")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	if *skips != "show" && *skips != "fail" {
		return false, fmt.Errorf("-skips %q: want show or fail", *skips)
	}
	allowed, err := readAllowed(*allow)
	if err != nil {
		return false, err
	}

	debts, err := readAllowed(*owed)
	if err != nil {
		return false, err
	}
	command := append([]string{"test", "-json"}, flags.Args()...)
	if tests := debts.owed(*mark); len(tests) > 0 {
		command = append(command, selection(tests)...)
	} else if *owed != "" {
		return true, nil // nothing to do
	}

	test := exec.Command("go", command...)
	test.Stderr = problems
	events, err := test.StdoutPipe()
	if err != nil {
		return false, fmt.Errorf("open a pipe for go test: %w", err)
	}
	if err := test.Start(); err != nil {
		return false, fmt.Errorf("run go test: %w", err)
	}
	r := newReport(out, allowed)
	readErr := r.read(events)
	runErr := test.Wait()
	r.summary(*slowest)
	unpaid := r.unpaid(debts.owed(*mark))
	for _, t := range unpaid {
		fmt.Fprintf(out, "did not pass, though it is skipped elsewhere because it runs here: %s\n", t)
	}
	passed := runErr == nil && r.failed == 0 && len(unpaid) == 0 && (*skips == "show" || len(r.unexcused()) == 0)
	if exit := new(exec.ExitError); errors.As(runErr, &exit) {
		runErr = nil // the report said why
	}
	return passed, errors.Join(readErr, runErr, r.empty())
}
