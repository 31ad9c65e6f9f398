// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// podsDepth bounds how deep the cgroup of all pods is looked for.
const podsDepth = 3

// place is where a process is among the cgroups.
type place struct {
	root string // where the hierarchy is mounted
	own  string // the cgroup of the process below root, empty if it is not there
	// machine is whether the process has the network of the machine, and known whether
	// that is known.
	machine, known bool
}

// findPlace returns the place of this process.
func findPlace(root string) place {
	p := place{root: root, own: cgroupOf(root, os.Getpid())}
	first := cgroupOf(root, 1)
	if first == "" || inContainer(root, first) {
		return p
	}
	own, err := os.Readlink("/proc/self/ns/net")
	its, err2 := os.Readlink("/proc/1/ns/net")
	p.known = err == nil && err2 == nil
	p.machine = p.known && own == its
	return p
}

// cgroupOf returns the cgroup of a process below root, or none. /proc names it from the root
// of a cgroup namespace, which may be another one. So the processes of the cgroup decide.
func cgroupOf(root string, pid int) string {
	wanted := strconv.Itoa(pid)
	has := func(dir string) bool {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		return err == nil && slices.Contains(strings.Fields(string(text)), wanted)
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	for line := range strings.Lines(string(text)) {
		if path, is := strings.CutPrefix(strings.TrimSpace(line), "0::"); is && has(filepath.Join(root, path)) {
			return filepath.Join(root, path)
		}
	}
	found := ""
	_ = filepath.WalkDir(root, func(dir string, d os.DirEntry, err error) error {
		switch {
		case err != nil || !d.IsDir(): // it may go at any time
			return nil
		case has(dir):
			found = dir
			return filepath.SkipAll
		}
		return nil
	})
	return found
}

// pods returns the cgroup of all pods of the node of this process, or none. Pods of another
// cluster may be on the same machine, if the node is a container, or if containers on the
// node are nodes.
//
// A process in a container is in that of a node, of a pod of the node, or of neither. In the
// last case it has no pods, unless the container is on the network of the machine.
func (p place) pods() string {
	container, above := p.ancestor(containers), p.ancestor(hasPods)
	if container == "" {
		if p.known && !p.machine && p.whole() {
			return "" // it was started in another network namespace, to try it
		}
		return highestPods(p.root)
	}
	if inside := highestPods(container); inside != "" {
		return inside
	}
	switch {
	case above != "" && holdsContainer(above, p.own):
		return above
	case above == "" && p.machine:
		return highestPods(p.root)
	}
	return ""
}

func (p place) whole() bool {
	id, err := cgroupID(p.root)
	return err == nil && id == rootID
}

// ancestor returns the deepest cgroup above the process, or its own, that is so, or none.
func (p place) ancestor(is func(string) bool) string {
	for dir := p.own; len(dir) > len(p.root); dir = filepath.Dir(dir) {
		if is(dir) {
			return dir
		}
	}
	return ""
}

func inContainer(root, cgroup string) bool {
	return place{root: root, own: cgroup}.ancestor(containers) != ""
}

// holdsContainer reports whether cgroup is that of a container of one of pods, or directly in
// one, as bpf/socketlb.c has it.
func holdsContainer(pods, cgroup string) bool {
	rel, err := filepath.Rel(pods, cgroup)
	if err != nil {
		return false
	}
	below := strings.Split(rel, "/")
	if slices.Contains(classes(pods), filepath.Join(pods, below[0])) {
		below = below[1:]
	}
	return len(below) == 2 || len(below) == 3
}

// classes returns the cgroups below that of all pods which hold pods of a class of service.
func classes(pods string) []string {
	prefix, suffix, systemd := filepath.Base(pods), ".slice", false
	if prefix, systemd = strings.CutSuffix(prefix, suffix); systemd {
		prefix += "-"
	} else {
		prefix, suffix = "", ""
	}
	return []string{filepath.Join(pods, prefix+"burstable"+suffix), filepath.Join(pods, prefix+"besteffort"+suffix)}
}

// highestPods returns the cgroup of all pods in the upper levels below cgroup, or none. Those
// in containers belong to other clusters. A kubelet whose driver was changed leaves the
// cgroup of the other driver, often empty. So one with processes comes first, then a higher
// one, then one with cgroups of pods, then the one that was made last.
func highestPods(cgroup string) string {
	var empty string
	level := []string{cgroup}
	for range podsDepth {
		var next []string
		for _, dir := range level {
			next = append(next, below(dir)...)
		}
		all := slices.DeleteFunc(slices.Clone(next), func(dir string) bool { return !hasPods(dir) })
		slices.SortFunc(all, func(a, b string) int { return cmp.Or(podsIn(b)-podsIn(a), cmp.Compare(idOf(b), idOf(a))) })
		if i := slices.IndexFunc(all, populated); i >= 0 {
			return all[i]
		}
		if len(all) > 0 {
			empty = cmp.Or(empty, all[0])
		}
		level = next
	}
	return empty
}

// podsIn returns 1 if a cgroup of all pods holds that of one, else 0.
func podsIn(pods string) int {
	classes := classes(pods)
	for _, dir := range append([]string{pods}, classes...) {
		if slices.ContainsFunc(below(dir), func(pod string) bool { return !slices.Contains(classes, pod) }) {
			return 1
		}
	}
	return 0
}

// idOf returns the number of a cgroup. Later ones have higher numbers.
func idOf(cgroup string) uint64 {
	id, _ := cgroupID(cgroup) // it may go at any time
	return id
}

// populated reports whether a cgroup, or one below it, has processes, see
// https://docs.kernel.org/admin-guide/cgroup-v2.html#un-populated-notification.
func populated(cgroup string) bool {
	text, err := os.ReadFile(filepath.Join(cgroup, "cgroup.events"))
	return err == nil && strings.Contains(string(text), "populated 1")
}

func hasPods(cgroup string) bool {
	base := filepath.Base(cgroup)
	return base == "kubepods" || base == "kubepods.slice" || strings.HasSuffix(base, "-kubepods.slice")
}

// below returns the cgroups directly below one, but those of containers.
func below(cgroup string) []string {
	entries, _ := os.ReadDir(cgroup) // it may go at any time
	var all []string
	for _, e := range entries {
		if e.IsDir() && !containers(e.Name()) {
			all = append(all, filepath.Join(cgroup, e.Name()))
		}
	}
	return all
}

// containers reports whether a cgroup has the name of one of a container.
func containers(cgroup string) bool { return container.MatchString(filepath.Base(cgroup)) }

// container matches what Docker, containerd, CRI-O, Podman, LXC and systemd-machined name the
// cgroup of a container: by its id, or as lxc.payload.NAME and machine-NAME.scope.
var container = regexp.MustCompile(`[0-9a-f]{64}|^lxc\.payload|^machine-.*\.scope$|^systemd-nspawn@`)
