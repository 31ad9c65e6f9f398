// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// scope selects the sockets that are taken, in the form that the programs read.
type scope struct {
	Netns   uint64
	Owner   uint64
	Pods    uint64
	Nested  [2]uint64
	Mask    uint64
	Program uint64
}

func (k *kernel) readScope() (s scope, err error) {
	return s, k.maps["scope"].Lookup(uint32(0), &s)
}

// UnifiedRoot returns where the cgroup hierarchy of version 2 is mounted.
func UnifiedRoot() (string, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if field := strings.Fields(lines.Text()); len(field) > 2 && field[2] == "cgroup2" {
			return field[1], nil
		}
	}
	return "", errNoHierarchy
}

var errNoHierarchy = errors.New("no cgroup hierarchy of version 2 is mounted")

// cgroupID returns the number of a cgroup that programs see. It is the inode of its
// folder, see https://git.kernel.org/linus/743210386c03.
func cgroupID(path string) (uint64, error) {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return 0, fmt.Errorf("look at cgroup %s: %w", path, err)
	}
	return s.Ino, nil
}

// rootID is the number of the cgroup that contains all.
const rootID = 1

// podsDepth bounds how deep the cgroup of all pods is looked for.
const podsDepth = 3

// findScope returns the pods whose sockets are taken: those below cgroup. The kubelet makes a cgroup of
// all pods, in it one for each pod, those of two classes of service one level further
// down, and in these one for each container. Its drivers name the cgroups differently,
// see pkg/kubelet/cm/cgroup_manager_linux.go of kubernetes/kubernetes.
func findScope(cgroup string) (scope, error) {
	var s scope
	pods := findPods(cgroup)
	if pods == "" {
		return s, nil
	}
	prefix, suffix, systemd := filepath.Base(pods), "", false
	if prefix, systemd = strings.CutSuffix(prefix, ".slice"); systemd {
		prefix, suffix = prefix+"-", ".slice"
	} else {
		prefix = ""
	}
	for path, id := range map[string]*uint64{
		pods: &s.Pods,
		filepath.Join(pods, prefix+"burstable"+suffix):  &s.Nested[0],
		filepath.Join(pods, prefix+"besteffort"+suffix): &s.Nested[1],
	} {
		var err error
		if *id, err = cgroupID(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, err // a cgroup may go at any time
		}
	}
	return s, nil
}

// checkRoot returns an error if the hierarchy below cgroup has no process but those of
// this container. A cgroup namespace hides the others, and then the folder of the host has
// to be mounted. A node that is a container has a root of its own, but pods in it.
func checkRoot(cgroup string, s scope) error {
	id, err := cgroupID(cgroup)
	if err != nil {
		return err
	}
	if id == rootID || s.Pods != 0 {
		return nil
	}
	return fmt.Errorf("the cgroup hierarchy at %s begins below the root of the node, and no pods are in it: mount the folder /sys/fs/cgroup of the host into the container", cgroup)
}

// findPods returns the cgroup of all pods below cgroup, or none. The highest one is that of
// the kubelet of this node. Those in containers belong to other clusters.
func findPods(cgroup string) string {
	level := []string{cgroup}
	for range podsDepth {
		var next []string
		for _, dir := range level {
			next = append(next, below(dir)...)
		}
		if i := slices.IndexFunc(next, hasPods); i >= 0 {
			return next[i]
		}
		level = next
	}
	return ""
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
		if e.IsDir() && !container.MatchString(e.Name()) {
			all = append(all, filepath.Join(cgroup, e.Name()))
		}
	}
	return all
}

// container matches what Docker, containerd, CRI-O, Podman and LXC name the cgroup of a
// container: by its id, or as lxc.payload.NAME.
var container = regexp.MustCompile(`[0-9a-f]{64}|^lxc\.payload`)

// Moved implements Driver.
func (k *kernel) Moved() (string, error) {
	have, err := k.readScope()
	if err != nil {
		return "", fmt.Errorf("read scope: %w", err)
	}
	want, err := k.scope()
	switch want.Mask, want.Program = have.Mask, have.Program; {
	case err != nil:
		return "", err
	case want == have:
		return "", nil
	case want.Pods == 0:
		return "the cgroup of all pods is gone", nil
	case want.Pods == have.Pods:
		return "classes of pods have other cgroups", nil
	}
	return "the cgroup of all pods is " + findPods(k.cgroup), nil
}

// Follow implements Driver. Programs that run meanwhile see parts of both scopes. Then they
// may leave a pod to the rules, and take none that they should not.
func (k *kernel) Follow() error {
	have, err := k.readScope()
	if err != nil {
		return fmt.Errorf("read scope: %w", err)
	}
	want, err := k.scope()
	if err != nil {
		return err
	}
	want.Mask, want.Program = have.Mask, have.Program
	if err := k.maps["scope"].Put(uint32(0), &want); err != nil {
		return fmt.Errorf("write scope: %w", err)
	}
	return nil
}
