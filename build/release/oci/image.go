// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// About describes an image, by the keys of
// https://github.com/opencontainers/image-spec/blob/main/annotations.md
type About struct {
	Title, Description, Version, Revision string
	Licenses                              string // an expression of SPDX, of all that is in the image
	Source                                string // where the source is; empty is nowhere in public
	Created                               time.Time
}

// vendor is who makes the images. They have no base image to name.
const vendor = "The kubeproxy Authors"

func (a About) labels() map[string]string {
	const key = "org.opencontainers.image."
	all := map[string]string{
		key + "title": a.Title, key + "description": a.Description, key + "licenses": a.Licenses, key + "vendor": vendor,
		key + "version": a.Version, key + "revision": a.Revision, key + "created": a.Created.UTC().Format(time.RFC3339),
	}
	if a.Source != "" {
		all[key+"source"], all[key+"url"], all[key+"documentation"] = a.Source, a.Source, a.Source
	}
	return all
}

// Image makes an image for a platform, of layers from bottom to top.
func Image(a About, p v1.Platform, run v1.Config, layers ...v1.Layer) (v1.Image, error) {
	at := v1.Time{Time: a.Created.UTC()}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range layers {
		var err error
		if img, err = mutate.Append(img, mutate.Addendum{Layer: l, History: v1.History{Created: at, CreatedBy: "make image"}}); err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	run.Labels = a.labels()
	config.Config, config.Created, config.OS, config.Architecture = run, at, p.OS, p.Architecture
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, a.labels()).(v1.Image), nil
}

// Index makes an index of images for several platforms, and of what refers to them.
func Index(a About, images ...v1.Image) (v1.ImageIndex, error) {
	index := v1.ImageIndex(empty.Index)
	for _, img := range images {
		config, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	return mutate.Annotations(index, a.labels()).(v1.ImageIndex), nil
}
