// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"kubeproxy/test/thirdparty"
	"kubeproxy/test/vm"
)

// Programs are the paths of the control plane's programs.
type Programs struct{ Etcd, APIServer string }

// Build returns the programs of the control plane, and builds them where they are missing,
// see thirdparty.Module. A virtual machine cannot build, so the programs are installed
// there in advance.
func Build(ctx context.Context, out io.Writer) (Programs, error) {
	folder := os.Getenv(vm.ControlPlaneVariable)
	if folder == "" {
		var err error
		if folder, err = thirdparty.Kubernetes.Build(ctx, out, "etcd", "kube-apiserver"); err != nil {
			return Programs{}, err
		}
	}
	return Programs{Etcd: filepath.Join(folder, "etcd"), APIServer: filepath.Join(folder, "kube-apiserver")}, nil
}

// UpstreamProxy returns the path of Kubernetes' own kube-proxy.exe for windows/amd64, of
// the control plane's version. It is built and kept as the control plane is.
func UpstreamProxy(ctx context.Context, out io.Writer) (string, error) {
	folder, err := thirdparty.KubernetesForWindows.Build(ctx, out, "kube-proxy.exe")
	return filepath.Join(folder, "kube-proxy.exe"), err
}
