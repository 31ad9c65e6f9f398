// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// meter measures the time and the CPU time of this process, and of programs that it ran
// and waited for, since it was started.
type meter struct {
	began time.Time
	cpu   time.Duration
}

func start() meter { return meter{time.Now(), ownCPU()} }

func (m meter) stop() (wall, cpu time.Duration) { return time.Since(m.began), ownCPU() - m.cpu }

func ownCPU() time.Duration {
	total := time.Duration(0)
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if err := unix.Getrusage(who, &u); err != nil {
			return 0
		}
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}

// heapInUse returns the bytes of live Go objects.
func heapInUse() float64 {
	runtime.GC()
	runtime.GC() // empties pools, which survive one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// peakRSS returns the peak resident set of process pid, or "self".
func peakRSS(pid string) (float64, error) {
	kB, err := field("/proc/"+pid+"/status", "VmHWM:")
	return kB * 1024, err
}

// field returns the number in the second column of the line whose first word is name.
func field(path, name string) (float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) >= 2 && words[0] == name {
			return strconv.ParseFloat(words[1], 64)
		}
	}
	return 0, fmt.Errorf("file %s: no line %q", path, name)
}

const memoryRoot = "/sys/fs/cgroup/memory"

// memoryGroup creates a cgroup of version 1 for t, in which the kernel counts its own
// allocations. The path is empty if there is none. See
// https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
func memoryGroup(t task) (path string, remove func()) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", func() {}
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[1] != "memory" {
			continue
		}
		path = filepath.Join(memoryRoot, parts[2], fmt.Sprintf("bench-%d-%s-%d", os.Getpid(), t.Role, t.Services))
	}
	if path == "" || os.Mkdir(path, 0o755) != nil {
		return "", func() {}
	}
	return path, func() { removeGroup(path) }
}

// removeGroup removes a cgroup once it is empty: a program that was killed within a large
// transaction first has to finish it.
func removeGroup(path string) {
	deadline := time.Now().Add(3 * time.Minute)
	reported := false
	for os.Remove(path) != nil && time.Now().Before(deadline) {
		if _, err := os.Stat(path); err != nil {
			return
		}
		if !reported {
			reported = true
			fmt.Fprintln(os.Stderr, "waiting for the last process of a measurement to end")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (t task) joinGroup() error {
	if t.Group == "" {
		return nil
	}
	file := filepath.Join(t.Group, "cgroup.procs")
	if err := os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return fmt.Errorf("join memory cgroup: %w", err)
	}
	return nil
}

// kernelMemory returns the bytes that the kernel holds for this process. If the kernel
// does not count by process, it returns the size of all kernel caches.
func (t task) kernelMemory() (float64, error) {
	if t.Group == "" {
		kB, err := field("/proc/meminfo", "Slab:")
		return kB * 1024, err
	}
	text, err := os.ReadFile(filepath.Join(t.Group, "memory.kmem.usage_in_bytes"))
	if err != nil {
		return 0, fmt.Errorf("read kernel memory: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
}
