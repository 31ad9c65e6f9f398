// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart renders and packs the Helm chart, and writes the kustomize bases that
// follow from it.
//
// The chart is the one place where the objects are described. What is in build/deploy is
// generated, and a test fails if it is not what the chart gives.
package chart

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	helm "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/client-go/rest"
)

// Namespace is where the chart is installed if nothing else is said, as system-node-critical
// pods may be refused elsewhere.
const Namespace = "kube-system"

// Source is the chart, and the cluster that it may ask for the API server's address.
type Source struct {
	Folder    string
	Version   string       // of the application; empty leaves what is in the chart
	Release   string       // name; empty is that of the chart
	Namespace string       // of the release; empty is Namespace
	Image     string       // repository, in place of the one in what is packed
	Home      string       // where the source is, as a URL, for what is packed
	Cluster   *rest.Config // nil asks none
	Kube      string       // version of Kubernetes that it is rendered for; empty is a new one
}

// newKube stands for every version in which nothing is left of what the chart does for older ones.
const newKube = "v1.36.0"

// Render returns the text of each template with these values, by name, without those
// that are empty. A value that cannot be used is an error that names it.
func (s *Source) Render(values map[string]any) (map[string]string, error) {
	c, err := loader.LoadDir(s.Folder)
	if err != nil {
		return nil, err
	}
	if s.Version != "" {
		c.Metadata.AppVersion = s.Version
	}
	kube, err := chartutil.ParseKubeVersion(cmp.Or(s.Kube, newKube))
	if err != nil {
		return nil, err
	}
	able := chartutil.DefaultCapabilities.Copy()
	able.KubeVersion = *kube
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: cmp.Or(s.Release, c.Name()), Namespace: cmp.Or(s.Namespace, Namespace), IsInstall: true}, able)
	if err != nil {
		return nil, err
	}
	texts, err := s.render(c, all)
	if err != nil {
		return nil, err
	}
	named := map[string]string{}
	for name, text := range texts {
		if strings.TrimSpace(text) != "" && !strings.HasPrefix(path.Base(name), "_") {
			named[path.Base(name)] = strings.TrimSpace(text) + "\n"
		}
	}
	return named, nil
}

func (s *Source) render(c *helm.Chart, values chartutil.Values) (map[string]string, error) {
	if s.Cluster != nil {
		return engine.RenderWithClient(c, values, s.Cluster)
	}
	return engine.Render(c, values)
}

// Manifest returns the objects as one text, as helm template prints them.
func (s *Source) Manifest(values map[string]any) (string, error) {
	texts, err := s.Render(values)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if path.Ext(name) == ".yaml" {
			fmt.Fprintf(&out, "---\n%s", texts[name])
		}
	}
	return out.String(), nil
}
