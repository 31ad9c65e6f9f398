// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// load loads the maps and programs of the family.
func (k *kernel) load(frontends, slots int) error {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return fmt.Errorf("read the programs of socket acceleration: %w", err)
	}
	d := digits[k.family]
	spec.Maps["frontends"+d].MaxEntries = uint32(frontends)
	spec.Maps["slots"+d].MaxEntries = uint32(slots)
	part := &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{}, Programs: map[string]*ebpf.ProgramSpec{}, ByteOrder: spec.ByteOrder, Types: spec.Types}
	for _, name := range []string{"scope", "taken", "frontends" + d, "slots" + d, "sockets" + d, "recent" + d} {
		part.Maps[name] = spec.Maps[name]
	}
	for _, a := range attachments[k.family] {
		part.Programs[a.program] = spec.Programs[a.program]
	}
	pinned := map[string]*ebpf.Map{}
	kept := map[string]bool{}
	for pin, name := range map[string]string{"sockets": "sockets" + d, "recent": "recent" + d, "taken": "taken"} {
		m, err := ebpf.LoadPinnedMap(filepath.Join(k.dir, pin), nil)
		if err != nil {
			continue // there is none
		}
		defer m.Close()
		if spec.Maps[name].Compatible(m) == nil {
			pinned[name], kept[pin] = m, true
		}
	}
	o := ebpf.CollectionOptions{MapReplacements: pinned}
	c, err := ebpf.NewCollectionWithOptions(part, o)
	if err != nil {
		return fmt.Errorf("load the programs of socket acceleration: %w", k.firstRefusal(part, o, err))
	}
	for _, name := range []string{"frontends", "slots", "sockets", "recent"} {
		c.Maps[name] = c.Maps[name+d]
		delete(c.Maps, name+d)
	}
	k.built = built{Collection: c, kept: kept}
	return nil
}

// firstRefusal returns why the kernel refuses the first of the programs that it refuses. A
// collection is loaded in any order, and an error that changes would be logged anew.
func (k *kernel) firstRefusal(all *ebpf.CollectionSpec, o ebpf.CollectionOptions, err error) error {
	for _, a := range attachments[k.family] {
		one := *all
		one.Programs = map[string]*ebpf.ProgramSpec{a.program: all.Programs[a.program]}
		c, err := ebpf.NewCollectionWithOptions(&one, o)
		if err != nil {
			return err
		}
		c.Close()
	}
	return err
}

// checkRights returns an error that names the capabilities which this process lacks. The
// kernel says only that it refuses a program, or which of its steps could speculate.
func checkRights() error {
	self := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var rights [2]unix.CapUserData
	if err := unix.Capget(&self, &rights[0]); err != nil {
		return fmt.Errorf("ask for the capabilities: %w", err)
	}
	has := func(right int) bool { return rights[right/32].Effective&(1<<(right%32)) != 0 }
	var lacks []string
	for _, r := range []struct {
		name   string
		number int
	}{{"CAP_BPF", unix.CAP_BPF}, {"CAP_PERFMON", unix.CAP_PERFMON}} {
		if !has(r.number) && !has(unix.CAP_SYS_ADMIN) {
			lacks = append(lacks, r.name)
		}
	}
	if !has(unix.CAP_NET_ADMIN) {
		lacks = append(lacks, "CAP_NET_ADMIN")
	}
	if len(lacks) > 0 {
		return fmt.Errorf("more rights are needed: %s", strings.Join(lacks, ", "))
	}
	return nil
}

// allowMaps checks the rights, and lifts the limit that kernels before 5.11 set to the memory
// of maps, see https://pkg.go.dev/github.com/cilium/ebpf/rlimit.
func allowMaps() error {
	if err := checkRights(); err != nil {
		return err
	}
	err := rlimit.RemoveMemlock()
	if errors.Is(err, unix.EPERM) {
		return errors.New("the kernel lets this process make no maps: the right CAP_BPF of the host is needed, before Linux 5.11 CAP_SYS_RESOURCE, too")
	}
	if err != nil {
		return fmt.Errorf("allow memory for maps: %w", err)
	}
	return nil
}
