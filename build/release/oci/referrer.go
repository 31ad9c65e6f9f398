// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// referrer is a manifest of its own.
type referrer struct {
	v1.Image
	raw []byte
}

func (r *referrer) RawManifest() ([]byte, error)    { return r.raw, nil }
func (r *referrer) Manifest() (*v1.Manifest, error) { return partial.Manifest(r) }
func (r *referrer) Digest() (v1.Hash, error)        { return partial.Digest(r) }
func (r *referrer) Size() (int64, error)            { return partial.Size(r) }

// Referrer makes a text of a type that refers to an image. Pushed to a registry beside the image, it is found there
// by the image's digest, see
// https://github.com/opencontainers/distribution-spec/blob/main/spec.md#listing-referrers
// It has the form of an image for no platform, as what tools copy and load with an index is images.
func Referrer(to v1.Image, kind string, text []byte) (v1.Image, error) {
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.AppendLayers(base, static.NewLayer(text, types.MediaType(kind)))
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "unknown", "unknown"
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	manifest = manifest.DeepCopy()
	if manifest.Subject, err = partial.Descriptor(to); err != nil {
		return nil, err
	}
	manifest.ArtifactType = kind
	raw, err := json.Marshal(manifest)
	return &referrer{img, raw}, err
}
