// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"kubeproxy/test/cache"
)

// Environment variables in a machine.
const (
	Variable      = "KUBEPROXY_VM"      // the name of its kernel
	ProxyVariable = "KUBEPROXY_PROGRAM" // path of the proxy that tests run
	// ControlPlaneVariable is a folder with etcd and kube-apiserver.
	ControlPlaneVariable = "KUBEPROXY_CONTROL_PLANE"
)

// proxyInside is the proxy's path in a machine.
const proxyInside = "/usr/local/bin/kube-proxy"

// addProxy adds the proxy to the files of j, freshly built if its sources changed. After
// release, another process may replace the file.
func (m Machine) addProxy(ctx context.Context, j *Job) (release func(), err error) {
	release, err = cache.Lock(ctx, filepath.Join(m.cache, proxyLock), nil)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(m.cache, "kube-proxy")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", file, "kubeproxy/cmd/kube-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		release()
		return nil, fmt.Errorf("build the proxy: %w\n%s", err, out)
	}
	files := map[string]string{file: proxyInside}
	for from, to := range j.Files {
		files[from] = to
	}
	j.Files = files
	j.Env = append(j.Env[:len(j.Env):len(j.Env)], ProxyVariable+"="+proxyInside)
	return release, nil
}
