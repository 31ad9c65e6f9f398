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

// Kernels are the names of the available kernels, oldest first.
var Kernels = []string{"5.10", "6.1", "6.12", "newest"}

// DefaultKernel is the kernel for tests that select none.
const DefaultKernel = "6.1"

// releases are the Debian releases with these kernels, and the suites that are searched
// in each.
var releases = map[string][]suite{
	"5.10":   {{main, "bullseye"}, {security, "bullseye-security"}},
	"6.1":    {{main, "bookworm"}, {security, "bookworm-security"}},
	"6.12":   {{main, "trixie"}, {security, "trixie-security"}},
	"newest": {{main, "sid"}},
}

// suite is a part of one of Debian's archives.
type suite struct{ archive, name string }

// The labels of Debian's archives.
const (
	main     = "Debian"
	security = "Debian-Security"
)

// kernel is a kernel that was downloaded.
type kernel struct {
	folder  string
	release string // as uname reports it, such as 6.1.0-56-cloud-amd64
}

// openKernel reads the folder of an unpacked kernel.
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

// image is the file to boot. Since 7.x Debian installs it beside the modules.
func (k kernel) image() string {
	image := filepath.Join(k.modules(), "vmlinuz")
	if _, err := os.Stat(image); err == nil {
		return image
	}
	return filepath.Join(k.folder, "boot", "vmlinuz-"+k.release)
}

// unknownKernelError is the error for the name of a kernel that does not exist.
func unknownKernelError(name string) error {
	return fmt.Errorf("kernel %q: must be one of %s", name, strings.Join(Kernels, ", "))
}
