// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// facts describe a machine, as its figures depend on them.
type facts struct {
	date       time.Time
	commit     string
	kernel     string
	cpu        string
	loadBefore load
	loadDuring load // the highest sample
	// still is whether no other load on the machine changes the figures.
	still bool
}

// load is the average number of runnable processes in the last minute, as the kernel
// writes it, see proc_loadavg(5).
type load string

func readFacts(ctx context.Context, now time.Time) (facts, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return facts{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	f := facts{date: now, commit: commit(ctx)}
	f.kernel = fmt.Sprintf("Linux %s %s", unix.ByteSliceToString(u.Release[:]), runtime.GOARCH)
	f.cpu = fmt.Sprintf("%d of %s", runtime.NumCPU(), cpuModel())
	f.loadBefore = readLoad()
	f.loadDuring = f.loadBefore
	return f, nil
}

// cpuModel returns the model name of the first processor.
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return unknown
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH // some architectures have no model name
}

func readLoad() load {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return unknown
	}
	first, _, _ := strings.Cut(string(text), " ")
	return load(first)
}

// sampleLoad keeps the highest load seen.
func (f *facts) sampleLoad() {
	now := readLoad()
	most, err := strconv.ParseFloat(string(f.loadDuring), 64)
	if v, bad := strconv.ParseFloat(string(now), 64); err != nil || bad == nil && v > most {
		f.loadDuring = now
	}
}

// commit returns the commit of the measured sources.
func commit(ctx context.Context) string {
	hash, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return unknown // no repository, or no git
	}
	text := strings.TrimSpace(string(hash))
	if exec.CommandContext(ctx, "git", "diff", "--quiet", "HEAD", "--", ":/*.go", ":/go.mod").Run() != nil {
		text += " with changes"
	}
	return text
}

const unknown = "unknown"

// machine returns the facts that are known before the measurement.
func (f *facts) machine() string {
	return fmt.Sprintf(`date    %s
commit  %s
kernel  %s
cpu     %s
`, f.date.UTC().Format("2006-01-02 15:04 MST"), f.commit, f.kernel, f.cpu)
}

// text is the head of a section.
func (f *facts) text() string {
	return fmt.Sprintf("%sload    %s before, at most %s\n", f.machine(), f.loadBefore, f.loadDuring)
}

// busy is a load that neither the bench nor a peer causes.
const busy = 3

// notes qualify the figures.
func (f *facts) notes() []string {
	most, err := strconv.ParseFloat(string(f.loadDuring), 64)
	if err != nil || most <= busy || f.still {
		return nil
	}
	return []string{fmt.Sprintf("Other work shared the processors, with a load of up to %.1f: read the times as upper bounds.", most)}
}
