// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

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
