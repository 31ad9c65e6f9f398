// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"errors"
	"fmt"

	"kubeproxy/common/service"
)

// UnseenError is why this process cannot tell whether the layer is in the kernel.
type UnseenError struct {
	Family service.Family
	// Likely is whether each place of the programs of the layer has one, whoever attached
	// it.
	Likely bool
	// Err is what the kernel answered, if not Likely.
	Err error
}

// Error says which rights the process needs.
func (e *UnseenError) Error() string {
	const want = "want the capability SYS_ADMIN, or the BPF file system of the node at " + bpffs
	if e.Likely {
		return fmt.Sprintf("programs are attached where socket acceleration of %s attaches its own, and this process may not see whose they are: %s", e.Family, want)
	}
	return fmt.Sprintf("this process may not look for programs of socket acceleration (%v): %s", e.Err, want)
}

// suspicion returns what err says if the layer is likely in the kernel, else nothing.
func suspicion(err error) string {
	if unseen := (*UnseenError)(nil); errors.As(err, &unseen) && unseen.Likely {
		return unseen.Error()
	}
	return ""
}

// known returns err, or nil for an UnseenError. A round must not fail for a layer that this
// process neither made nor sees.
func known(err error) error {
	if unseen := (*UnseenError)(nil); errors.As(err, &unseen) {
		return nil
	}
	return err
}
