// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kernels runs the live tests on each kernel of package vm, and writes the
// results to a page. Results of earlier runs stay on the page if they are not replaced,
// so that a part can be run alone.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"kubeproxy/test/kit"
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

// about is the text of the page before its table.
const about = `# Kernels

How many live tests passed on Debian's kernels, oldest first, each in an emulated [virtual
machine](../CONTRIBUTING.md#other-kernels). Written by ` + "`make test-kernels`" + ` from docs/kernels.json, which has the times, too.

`

// page returns the page with the table of all outcomes.
func (all outcomes) page() string {
	var rows [][]string
	head := []string{"tests"}
	for _, k := range vm.Kernels {
		head = append(head, all.release(k))
	}
	rows = append(rows, head)
	for _, s := range suites {
		row := []string{s.title}
		for _, k := range vm.Kernels {
			o, ok := all[k][s.name]
			row = append(row, o.cell(ok))
		}
		rows = append(rows, row)
	}
	return about + kit.Table(rows) + all.skipped()
}

// skipped lists the skipped tests by the reason.
func (all outcomes) skipped() string {
	tests := map[string][]string{}
	for _, k := range vm.Kernels {
		for _, s := range suites {
			why := all[k][s.name].Reasons
			for _, test := range slices.Sorted(maps.Keys(why)) {
				tests[why[test]] = append(tests[why[test]], test)
			}
		}
	}
	if len(tests) == 0 {
		return ""
	}
	text := "\nSkipped:\n\n"
	for _, why := range slices.Sorted(maps.Keys(tests)) {
		slices.Sort(tests[why])
		text += "- " + why + ": " + strings.Join(slices.Compact(tests[why]), ", ") + "\n"
	}
	return text
}

// release is the version of a kernel, as recorded by a suite.
func (all outcomes) release(kernel string) string {
	for _, o := range all[kernel] {
		if o.Release != "" {
			return o.Release
		}
	}
	return kernel
}

// cell returns the outcome of a suite for the table, if it was run.
func (o outcome) cell(ran bool) string {
	if !ran {
		return "not run"
	}
	if !o.Ended {
		return "no result"
	}
	text := strconv.Itoa(o.Passed)
	if o.Failed > 0 {
		text += fmt.Sprintf(", **%d failed**", o.Failed)
	}
	if o.Skipped > 0 {
		text += fmt.Sprintf(", %d skipped", o.Skipped)
	}
	return text
}

// suite is a selection of tests.
type suite struct {
	name, title string
	packages    []string
	run, skip   string // patterns of go test
}

const cells = "^(TestEveryCell|TestIPTablesEveryCell)$"

// suites are in the order of the page.
var suites = []suite{
	{"nftables", "mode nftables: every sort of connection, TCP, UDP, SCTP", []string{"./test/live"}, "^TestEveryCell$", ""},
	{"iptables-legacy", "mode iptables, legacy: the same", []string{"./test/live"}, "^TestIPTablesEveryCell$/^legacy$", ""},
	{"iptables-nft", "mode iptables, nft: the same", []string{"./test/live"}, "^TestIPTablesEveryCell$/^nft$", ""},
	{"ipvs", "mode ipvs: the same", []string{"./test/live"}, "^TestIPVSEveryCell$", ""},
	{"userspace", "mode userspace", []string{"./test/live"}, "^TestUserspace", ""},
	{"bridge", "pods on a bridge, modes nftables and iptables", []string{"./test/live"}, "^(TestBridge|TestIPTablesBridge)$", ""},
	{"live-ipvs", "mode ipvs: the rest", []string{"./test/live"}, "^TestIPVS", "^TestIPVSEveryCell$"},
	{"live-nftables", "mode nftables: updates, restarts, affinity, changes by others; switches of modes", []string{"./test/live"}, "", "^TestIP|^TestUserspace|^TestSCTP$|" + cells + "|^TestBridge$"},
	{"live-iptables", "mode iptables: the same", []string{"./test/live"}, "^TestIPTables", "^TestIPTables(SCTP|Bridge)$|" + cells},
	{"backends", "the kernel's part of nftables, iptables, ipvs, conntrack, sysctls",
		[]string{"./platform/linux/nftables", "./platform/linux/iptables", "./platform/linux/ipvs", "./platform/linux/conntrack", "./platform/linux/sysctl"}, "", ""},
	// A compiler is not in the machine, and one emulated processor starts too few proxies to kill.
	{"acceleration", "socket acceleration", []string{"./platform/linux/socketlb"}, "", "^Test(ObjectIsCompiled|KilledWhileClientsConnect)$"},
	{"ground", "the harness of live tests: networks, SCTP, notifications", []string{"./test/netlab", "./test/nftmonitor"}, "", ""},
}

// outcome is the result of a suite on a kernel.
type outcome struct {
	Release                 string // of the kernel
	Passed, Failed, Skipped int
	Ended                   bool // it ran to its end, with success or not
	Took                    time.Duration
	Reasons                 map[string]string `json:",omitempty"` // by the test that was skipped
}

// counts matches the last line of a report.
var counts = regexp.MustCompile(`(?m)^(\d+) passed, (\d+) failed, (\d+) skipped$`)

// skips matches a line about a skipped test in a report, with its reason.
var skips = regexp.MustCompile(`(?m)^  kubeproxy/\S+ +(Test\S+) +(\S.*)$`)

// reasons returns why tests were skipped.
func reasons(report string) map[string]string {
	all := map[string]string{}
	for _, found := range skips.FindAllStringSubmatch(report, -1) {
		all[found[1]] = found[2]
	}
	return all
}

// runOn runs a suite on a kernel. An error means that it could not run.
func (s suite) runOn(ctx context.Context, runner, kernel string, out io.Writer) (outcome, error) {
	release, err := exec.CommandContext(ctx, runner, "-kernel", kernel, "-fetch").Output()
	if err != nil {
		return outcome{}, fmt.Errorf("fetch the kernel %s: %w", kernel, err)
	}
	o := outcome{Release: strings.TrimSpace(string(release))}
	fmt.Fprintf(out, "== kernel %s: %s\n", o.Release, s.title)
	args := []string{"run", "./build/testreport", "-slowest=0", "-allow=build/skips.txt", "--", "-count=1", "-p", "1", "-timeout", "60m"}
	args = append(args, "-exec", runner+" -proxy -kernel "+kernel)
	if s.run != "" {
		args = append(args, "-run", s.run)
	}
	if s.skip != "" {
		args = append(args, "-skip", s.skip)
	}
	start := time.Now()
	cmd := exec.CommandContext(ctx, "go", append(args, s.packages...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(out, &text), os.Stderr
	runErr := cmd.Run()
	if ctx.Err() != nil {
		return o, ctx.Err()
	}
	o.Took = time.Since(start)
	found := counts.FindStringSubmatch(text.String())
	if found == nil {
		return o, fmt.Errorf("suite %s on kernel %s came to no result: %v", s.name, kernel, runErr)
	}
	o.Ended = true
	o.Reasons = reasons(text.String())
	for i, n := range []*int{&o.Passed, &o.Failed, &o.Skipped} {
		*n, _ = strconv.Atoi(found[i+1]) // digits
	}
	return o, nil
}
