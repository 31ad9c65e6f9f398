// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"kubeproxy/common/service"
)

// deniedVariable makes the test program look for the layer below a folder, and print what
// comes of it.
const deniedVariable = "SOCKETLB_DENIED"

func lookForLayer(pins string) {
	d := NewDriver(service.IPv4, Options{Pins: pins, Cgroup: "/"})
	found, err := d.Installed()
	if !found && err == nil && d.Remove() == nil {
		os.Stdout.WriteString("nothing")
	}
}

// TestNothingIsFoundWithoutRights covers a process that may not look into the BPF file
// system. Its rounds must not fail for a layer that it does not want.
func TestNothingIsFoundWithoutRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user needs root")
	}
	pins := filepath.Join(t.TempDir(), "pins")
	if err := os.MkdirAll(pins, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), deniedVariable+"="+pins)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "nothing" {
		t.Errorf("%v: %s", err, out)
	}
}
