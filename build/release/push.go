// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/registry"
)

// push writes the images and the chart to the registry in the name of the image. With an image it pushes what it is
// made of, which refers to it. Who may write is what docker login and helm registry login know.
func push(ctx context.Context, o *options) error {
	first, err := name.NewTag(o.name + ":" + o.tag())
	if err != nil {
		return err
	}
	if first.RegistryStr() == "localhost" {
		return fmt.Errorf("%s names no registry: want make push IMAGE=HOST/TEAM/kubeproxy", o.name)
	}
	for _, v := range o.variants() {
		tag, err := name.NewTag(o.name + v.suffix + ":" + o.tag())
		if err != nil {
			return err
		}
		built, err := v.build(ctx, o)
		if err != nil {
			return fmt.Errorf("image %s: %w", v.about.Title, err)
		}
		if err := remote.WriteIndex(tag, built.index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", tag, err)
		}
		digest, err := built.index.Digest()
		if err != nil {
			return err
		}
		fmt.Printf("%s@%s\n", tag, digest)
	}
	return o.pushChart(first)
}

// pushChart writes the chart beside the images. Its name is that of the image, so it has a folder of its own.
func (o *options) pushChart(image name.Tag) error {
	_, text, err := o.ofImages().Pack(o.created)
	if err != nil {
		return err
	}
	c, err := loader.LoadArchive(bytes.NewReader(text))
	if err != nil {
		return err
	}
	var options []registry.ClientOption
	if image.Scheme() == "http" {
		options = append(options, registry.ClientOptPlainHTTP())
	}
	client, err := registry.NewClient(options...)
	if err != nil {
		return err
	}
	at := image.Repository.Name()
	at = at[:strings.LastIndex(at, "/")] + "/charts/" + c.Name()
	if _, err := client.Push(text, at+":"+c.Metadata.Version, registry.PushOptCreationTime(o.created.Format(time.RFC3339))); err != nil {
		return fmt.Errorf("push the chart: %w", err)
	}
	fmt.Printf("oci://%s --version %s\n", at, c.Metadata.Version)
	return nil
}
