// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// facts are what one must know of a machine to judge its figures.
type facts struct {
	date       time.Time
	kernel     string
	cpu        string
	memory     float64 // bytes
	loadBefore load
	loadDuring load // the most seen
}

// load is the average number of processes that wanted to run in the last
// minute, as the kernel writes it.
type load string

func readFacts(now time.Time) (facts, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return facts{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	kB, err := field("/proc/meminfo", "MemTotal:")
	if err != nil {
		return facts{}, fmt.Errorf("read the size of the memory: %w", err)
	}
	f := facts{date: now, kernel: unix.ByteSliceToString(u.Release[:]), cpu: cpuModel(), memory: kB * 1024}
	f.loadBefore = readLoad()
	f.loadDuring = f.loadBefore
	return f, nil
}

// cpuModel returns what the first processor calls itself.
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH // not every architecture tells
}

func readLoad() load {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
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

// text is the head of the output.
func (f *facts) text() string {
	return fmt.Sprintf(`date    %s
kernel  Linux %s %s
cpu     %d of %s
memory  %.0f GiB
go      %s
load    %s (1 min, before)
`, f.date.UTC().Format("2006-01-02 15:04 MST"), f.kernel, runtime.GOARCH, runtime.NumCPU(), f.cpu,
		f.memory/(1<<30), runtime.Version(), f.loadBefore)
}
