// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// fieldManager is the field manager of Apply.
const fieldManager = "kubeproxy-test"

// Apply applies the YAML documents of a manifest in order, as kubectl apply --server-side
// --validate=strict does: an unknown or duplicate field is an error. Namespaced objects
// without a namespace go to the default one. It stops at the first error, as later
// documents may need earlier ones.
func (c *Cluster) Apply(ctx context.Context, manifest []byte) error {
	return c.applyAll(ctx, manifest)
}

// Try has the API server check a manifest as Apply does, and changes nothing.
func (c *Cluster) Try(ctx context.Context, manifest []byte) error {
	return c.applyAll(ctx, manifest, metav1.DryRunAll)
}

// applyAll applies the documents in order, dry if dryRun says so.
func (c *Cluster) applyAll(ctx context.Context, manifest []byte, dryRun ...string) error {
	documents := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for n := 1; ; n++ {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = c.apply(ctx, text, dryRun)
		}
		if err != nil {
			return fmt.Errorf("apply document %d: %w", n, err)
		}
	}
}

func (c *Cluster) apply(ctx context.Context, document []byte, dryRun []string) error {
	var o *metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &o); err != nil {
		return err
	}
	if o == nil { // nothing but comments
		return nil
	}
	path, err := c.resource(o)
	if err != nil {
		return err
	}
	// Strict validation needs the original text, as duplicates do not survive parsing.
	request := c.Client.Discovery().RESTClient().Patch(types.ApplyYAMLPatchType).AbsPath(path...).
		Param("fieldManager", fieldManager).Param("fieldValidation", "Strict").
		SetHeader("Accept", "application/json").Body(document)
	for _, d := range dryRun {
		request.Param("dryRun", d)
	}
	if _, err := request.DoRaw(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", o.Kind, o.Name, err)
	}
	return nil
}

// resource returns the elements of the object's path, from the discovery of the API
// server.
func (c *Cluster) resource(o *metav1.PartialObjectMetadata) ([]string, error) {
	version, err := schema.ParseGroupVersion(o.APIVersion)
	if err != nil {
		return nil, err
	}
	kinds, err := c.Client.Discovery().ServerResourcesForGroupVersion(o.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("find kinds of %q: %w", o.APIVersion, err)
	}
	path := []string{"apis", version.Group, version.Version}
	if version.Group == "" {
		path = []string{"api", version.Version}
	}
	for _, k := range kinds.APIResources {
		if k.Kind != o.Kind || strings.Contains(k.Name, "/") { // a subresource
			continue
		}
		if k.Namespaced {
			path = append(path, "namespaces", cmp.Or(o.Namespace, metav1.NamespaceDefault))
		}
		return append(path, k.Name, o.Name), nil
	}
	return nil, fmt.Errorf("kind %q of %q: the API server has none", o.Kind, o.APIVersion)
}
