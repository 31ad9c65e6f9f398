// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kubeproxy/test/cache"
	"kubeproxy/test/thirdparty"
)

// clusterPrograms are those that machines run.
var clusterPrograms = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy"}

// parts are the programs that machines run, by the modules that have them, and those that
// only a network of pods needs.
var parts = []struct {
	module   thirdparty.Module
	programs []string
	network  string
}{
	{thirdparty.Kubernetes, clusterPrograms, ""},
	{thirdparty.Containerd, []string{"containerd", "containerd-shim-runc-v2", "ctr"}, ""},
	{thirdparty.Release, []string{"helm"}, ""},
	{thirdparty.Flannel, []string{"flannel"}, Flannel},
	{thirdparty.KubeRouter, []string{"kube-router"}, KubeRouter},
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
		if p.network == "" {
			errs = append(errs, add(p.module, p.programs...))
		}
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
func Build(ctx context.Context, out io.Writer, count int, network string) (*Cluster, error) {
	var files []string
	for _, p := range parts {
		if p.network != "" && p.network != network {
			continue
		}
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
	c := &Cluster{Nodes: count, Network: network, Archives: []string{images}, out: out}
	if c.Programs, err = join(ctx, out, files); err != nil {
		return nil, fmt.Errorf("collect programs: %w", err)
	}
	return c, nil
}

// join makes a folder that has files, and returns it. Other files get another folder, as
// clusters run with what they began with. The files stay if what they were made from goes.
func join(ctx context.Context, out io.Writer, files []string) (string, error) {
	name := fmt.Sprintf("programs-%x", sha256.Sum256([]byte(strings.Join(files, "\n"))))[:25]
	folder := filepath.Join(beside(files[0]), name, "bin")
	return folder, cache.Make(ctx, folder, waitingFor(out, "the programs"), func(part string) error {
		return linkAll(files, part)
	})
}

// linkAll makes a folder with links to files of the same file system.
func linkAll(files []string, folder string) error {
	errs := []error{os.MkdirAll(folder, 0o755)}
	for _, file := range files {
		errs = append(errs, os.Link(file, filepath.Join(folder, filepath.Base(file))))
	}
	return errors.Join(errs...)
}
