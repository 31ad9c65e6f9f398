// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"kubeproxy/test/netlab"
)

// program is the path of the proxy, built anew for each run of the tests.
var program string

func TestMain(m *testing.M) {
	os.Exit(netlab.Main(func() int {
		dir, err := os.MkdirTemp("", "kube-proxy-live-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "kube-proxy")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", program, "kubeproxy/cmd/kube-proxy")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the proxy: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}))
}

// patience is how long anything may take that is bound to happen. Only a
// fault makes a test wait that long.
const patience = 15 * time.Second

// await polls until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !poll(ok) {
		t.Fatalf("waited %s in vain: %s", patience, what)
	}
}

// poll reports that ok came true.
func poll(ok func() bool) bool {
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
