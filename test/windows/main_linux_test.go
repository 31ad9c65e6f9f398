// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"kubeproxy/test/program"
)

// soakFor is how long TestSoak runs.
var soakFor = flag.Duration("soak", usualSoak(), "how long faults are made at random, both versions of HNS together; by default $KUBEPROXY_SOAK or 15s")

func usualSoak() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("KUBEPROXY_SOAK")); err == nil {
		return d
	}
	return 15 * time.Second
}

// kubeProxy is the program for Linux, exe that for Windows, both freshly built for each
// run of the tests and in one folder.
var (
	kubeProxy program.Program
	exe       = sync.OnceValues(build)
)

func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }

func build() (string, error) {
	path := filepath.Join(filepath.Dir(kubeProxy.Path), "kube-proxy.exe")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, "kubeproxy/cmd/kube-proxy")
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build kube-proxy.exe: %w\n%s", err, text)
	}
	return path, nil
}
