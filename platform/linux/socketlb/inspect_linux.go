// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
)

// Inspect implements Driver.
func (k *kernel) Inspect() (*State, error) {
	numbers, err := k.folders()
	if err != nil || len(numbers) == 0 {
		return nil, err
	}
	folder := k.folder(slices.Max(numbers)) // an Activate may run
	for _, name := range []string{"scope", "frontends", "slots"} {
		if k.maps[name], err = ebpf.LoadPinnedMap(filepath.Join(folder, name), nil); err != nil {
			k.Release()
			return nil, fmt.Errorf("open map %s: %w", name, err)
		}
	}
	s, err := k.readScope()
	if err != nil {
		return nil, err
	}
	found := &State{Pods: s.Pods != 0}
	for _, a := range attachments[k.family] {
		switch err := k.adoptLink(folder, a); {
		case errors.Is(err, os.ErrNotExist):
			found.Fault = fmt.Sprintf("the pin of program %s is gone", a.program)
		case err != nil:
			return nil, err
		}
	}
	if err := k.Attached(); err != nil && found.Fault == "" {
		found.Fault = err.Error()
	}
	if found.Fault == "" { // else the programs of a process that runs may count as others
		others, err := k.Others()
		if err != nil {
			return nil, err
		}
		found.Others = others.Text
	}
	found.Memory, err = k.memory(s.Seed, k.maps, &k.mapped)
	return found, err
}
