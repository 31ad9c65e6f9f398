// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"unsafe"

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
	Seed    uint64
}

// readScope returns the scope of the tables, none if they are of a program with another one.
func (k *kernel) readScope() (s scope, err error) {
	m := k.maps["scope"]
	if m.ValueSize() != uint32(unsafe.Sizeof(s)) {
		return s, nil
	}
	return s, m.Lookup(uint32(0), &s)
}

// UnifiedRoot returns where the cgroup hierarchy of version 2 is mounted: the last place
// that can be reached, as something may be mounted over the others. A place that begins at
// the root of the node comes first.
func UnifiedRoot() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	return unifiedRoot(string(mounts))
}

func unifiedRoot(mounts string) (string, error) {
	root, whole := "", false
	err := errNoHierarchy
	for line := range strings.Lines(mounts) {
		field := strings.Fields(line)
		if len(field) < 3 || field[2] != "cgroup2" {
			continue
		}
		var s unix.Statfs_t
		if e := unix.Statfs(field[1], &s); e != nil || s.Type != unix.CGROUP2_SUPER_MAGIC {
			err = fmt.Errorf("the cgroup hierarchy of version 2 at %s cannot be reached, or something is mounted over it: %w", field[1], cmp.Or(e, error(unix.ENOENT)))
			continue
		}
		if id, e := cgroupID(field[1]); e == nil && (id == rootID || !whole) {
			root, whole = field[1], id == rootID
		}
	}
	if root == "" {
		return "", err
	}
	return root, nil
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

// findScope returns the pods whose sockets are taken: those below pods, if there are any. The kubelet makes a cgroup of
// all pods, in it one for each pod, those of two classes of service one level further
// down, and in these one for each container. Its drivers name the cgroups differently,
// see pkg/kubelet/cm/cgroup_manager_linux.go of kubernetes/kubernetes.
func findScope(pods string) (scope, error) {
	var s scope
	if pods == "" {
		return s, nil
	}
	classes := classes(pods)
	for path, id := range map[string]*uint64{
		pods: &s.Pods, classes[0]: &s.Nested[0], classes[1]: &s.Nested[1],
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
func checkRoot(cgroup, pods string) error {
	id, err := cgroupID(cgroup)
	if err != nil {
		return err
	}
	if id == rootID || pods != "" {
		return nil
	}
	return fmt.Errorf("the cgroup hierarchy at %s begins below the root of the node, and no pods are in it: mount the folder /sys/fs/cgroup of the host into the container", cgroup)
}

// Moved implements Driver.
func (k *kernel) Moved() (string, error) {
	have, err := k.readScope()
	if err != nil {
		return "", fmt.Errorf("read scope: %w", err)
	}
	want, err := k.scope()
	switch want.Mask, want.Program, want.Seed = have.Mask, have.Program, have.Seed; {
	case err != nil:
		return "", err
	case want == have:
		return "", nil
	case want.Pods == 0:
		return "the cgroup of all pods is gone", nil
	case want.Pods == have.Pods:
		return "classes of pods have other cgroups", nil
	}
	return "the cgroup of all pods is " + k.pods(), nil
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
	want.Mask, want.Program, want.Seed = have.Mask, have.Program, have.Seed
	if err := k.maps["scope"].Put(uint32(0), &want); err != nil {
		return fmt.Errorf("write scope: %w", err)
	}
	return nil
}
