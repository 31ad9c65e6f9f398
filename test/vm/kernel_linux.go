// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Kernels are the names of the kernels that there are, oldest first.
var Kernels = []string{"5.10", "6.1", "6.12", "newest"}

// DefaultKernel is the kernel that tests run on if nobody says otherwise.
const DefaultKernel = "6.1"

// releases are those of Debian that have the kernels, and the suites of each
// release that are looked into.
var releases = map[string][]suite{
	"5.10":   {{main, "bullseye"}, {security, "bullseye-security"}},
	"6.1":    {{main, "bookworm"}, {security, "bookworm-security"}},
	"6.12":   {{main, "trixie"}, {security, "trixie-security"}},
	"newest": {{main, "sid"}},
}

// suite is a part of one of Debian's archives.
type suite struct{ archive, name string }

// The labels that Debian's archives have.
const (
	main     = "Debian"
	security = "Debian-Security"
)

// kernel is one that has been fetched.
type kernel struct {
	folder  string
	release string // as uname says, such as 6.1.0-56-cloud-amd64
}

// openKernel reads a folder that a kernel was unpacked in.
func openKernel(folder string) (kernel, error) {
	found, err := filepath.Glob(filepath.Join(folder, "usr/lib/modules/*"))
	if err != nil || len(found) != 1 {
		return kernel{}, errors.Join(fmt.Errorf("%s holds %d kernels, want 1", folder, len(found)), err)
	}
	k := kernel{folder: folder, release: filepath.Base(found[0])}
	_, err = os.Stat(k.image())
	return k, err
}

// modules is the folder of k's modules.
func (k kernel) modules() string { return filepath.Join(k.folder, "usr/lib/modules", k.release) }

// image is the file to boot. Since 7.x Debian has it beside the modules.
func (k kernel) image() string {
	beside := filepath.Join(k.modules(), "vmlinuz")
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	return filepath.Join(k.folder, "boot", "vmlinuz-"+k.release)
}

// unknownKernelError complains of a kernel that there is not.
func unknownKernelError(name string) error {
	return fmt.Errorf("kernel %q: must be one of %s", name, strings.Join(Kernels, ", "))
}
