// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"kubeproxy/test/thirdparty"
)

// clusterPrograms are those that machines run.
var clusterPrograms = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy"}

// parts are the programs that machines run, by the modules that have them.
var parts = []struct {
	module   thirdparty.Module
	programs []string
}{
	{thirdparty.Kubernetes, clusterPrograms},
	{thirdparty.Containerd, []string{"containerd", "containerd-shim-runc-v2", "ctr"}},
	{thirdparty.Release, []string{"helm"}},
}

// Missing returns the programs of a cluster and of its tests that are not built yet.
// Building them takes much longer than anything else.
func Missing(ctx context.Context) ([]string, error) {
	var all []string
	add := func(m thirdparty.Module, names ...string) error {
		missing, err := m.Missing(ctx, names...)
		all = append(all, missing...)
		return err
	}
	var errs []error
	for _, p := range parts {
		errs = append(errs, add(p.module, p.programs...))
	}
	for name, module := range imagePrograms {
		errs = append(errs, add(module, name))
	}
	errs = append(errs, add(thirdparty.Kubernetes, testPrograms...))
	slices.Sort(all)
	return slices.Compact(all), errors.Join(errs...)
}

// Build makes everything that a cluster consists of, and is there already the second time.
// It returns a description for Up.
func Build(ctx context.Context, out io.Writer, count int) (*Cluster, error) {
	var files []string
	for _, p := range parts {
		folder, err := p.module.Build(ctx, out, p.programs...)
		if err != nil {
			return nil, err
		}
		for _, name := range p.programs {
			files = append(files, filepath.Join(folder, name))
		}
	}
	images, err := TestImages(ctx, out)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Nodes: count, Archives: []string{images}, out: out}
	if c.Programs, err = join(filepath.Join(filepath.Dir(images), "programs"), files); err != nil {
		return nil, fmt.Errorf("collect programs: %w", err)
	}
	return c, nil
}

// join makes a folder with links to files.
func join(folder string, files []string) (string, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	for _, file := range files {
		link := filepath.Join(folder, filepath.Base(file))
		if old, err := os.Readlink(link); err == nil && old == file {
			continue
		}
		if err := errors.Join(os.RemoveAll(link), os.Symlink(file, link)); err != nil {
			return "", err
		}
	}
	return folder, nil
}
