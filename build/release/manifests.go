// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"kubeproxy/build/release/chart"
)

// writeManifests writes what follows from the chart: the kustomize bases, and its README.
func writeManifests(_ context.Context, o *options) error {
	source := &chart.Source{Folder: o.chart}
	files, err := source.Bases()
	if err != nil {
		return err
	}
	readme, err := source.Readme()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.chart, "README.md"), []byte(readme), 0o644); err != nil {
		return err
	}
	for name, text := range files {
		file := filepath.Join(o.out, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// printManifest prints what helm template would, for the values on standard input. With
// a kubeconfig the chart asks the cluster, as helm install does.
func printManifest(_ context.Context, o *options) error {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		return fmt.Errorf("values: %w", err)
	}
	s := &chart.Source{Folder: o.chart, Release: o.release}
	if o.kubeconfig != "" {
		if s.Cluster, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig); err != nil {
			return err
		}
	}
	manifest, err := s.Manifest(values)
	if err != nil {
		return err
	}
	_, err = fmt.Print(manifest)
	return err
}
