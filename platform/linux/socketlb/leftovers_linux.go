// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf/link"

	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
)

// Leftovers is the layer that an earlier process may have left in the kernel.
type Leftovers struct {
	Family  service.Family
	Options Options
	// Wanted is whether the configuration has the layer. Then it is suspected to be there if
	// this process may not look.
	Wanted bool
}

// String names the layer.
func (l Leftovers) String() string { return "socket acceleration of " + l.Family.String() }

// Find returns a description of what exists, or "" if there is no layer. The error is a
// takeover.UncheckedError if this process may not look.
func (l Leftovers) Find(context.Context) (string, error) {
	k, err := l.search()
	if err != nil || k == nil {
		return "", l.unchecked(err)
	}
	found, err := k.Installed()
	switch {
	case err != nil:
		return "", l.unchecked(fmt.Errorf("look for %s: %w", l, err))
	case found:
		return "programs", nil
	}
	return "", nil
}

// Remove takes the layer out of the kernel. It succeeds if there is none. The error is that
// of Find if this process may not look.
func (l Leftovers) Remove(context.Context) error {
	k, err := l.search()
	if err != nil || k == nil {
		return l.unchecked(err)
	}
	defer k.Release()
	if err := k.Remove(); err != nil {
		return l.unchecked(fmt.Errorf("remove %s: %w", l, err))
	}
	return nil
}

// Evict detaches what earlier processes attached and what is not pinned here, where the layer
// is on: those pins are in a BPF file system that another one hides.
func (l Leftovers) Evict() error {
	k, err := l.search()
	if err != nil || k == nil || k.checkFileSystem() != nil { // else all would count
		return known(err)
	}
	defer k.Release()
	k.links = map[string]link.Link{}
	for _, a := range attachments[l.Family] {
		if pinned, err := link.LoadPinnedLink(filepath.Join(k.dir, a.program), nil); err == nil {
			k.links[a.program] = pinned
		}
	}
	if err := k.Evict(); err != nil {
		return fmt.Errorf("detach programs of %s that an earlier process left: %w", l, err)
	}
	return nil
}

func (l Leftovers) unchecked(err error) error {
	if unseen := (*UnseenError)(nil); errors.As(err, &unseen) {
		return &takeover.UncheckedError{Err: unseen, Suspected: unseen.Likely || l.Wanted}
	}
	return err
}

// search returns a kernel that can tell whether the layer is there, and remove it. That needs
// less than the layer itself: no cgroups, for instance. It is nil if nothing of the layer can
// be in this kernel.
func (l Leftovers) search() (*kernel, error) {
	o := l.Options
	folder := cmp.Or(o.Name, Name)
	k := &kernel{family: l.Family, mount: cmp.Or(o.Pins, bpffs), cgroup: o.Cgroup, owner: ownerOf(folder)}
	var err error
	if k.cgroup == "" {
		k.cgroup, err = UnifiedRoot()
	}
	if errors.Is(err, errNoHierarchy) {
		used, readErr := hierarchyUsed()
		if err = readErr; err == nil && !used {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	k.netns, err = netnsCookie()
	switch {
	case err != nil && lacking(err):
		return nil, nil
	case err != nil:
		return nil, k.exclude(err)
	}
	k.dir = filepath.Join(k.mount, folder, "netns-"+strconv.FormatUint(k.netns, 10), labels[l.Family])
	return k, nil
}

// hierarchyUsed reports whether the cgroup hierarchy of version 2 is or was mounted somewhere
// on this machine: only then it is in this file, see proc_cgroup_show of
// kernel/cgroup/cgroup.c. A container beside version 1 may not see it mounted.
func hierarchyUsed() (bool, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	return bytes.HasPrefix(text, []byte("0::")) || bytes.Contains(text, []byte("\n0::")), err
}
