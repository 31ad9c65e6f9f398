// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package oci makes images without a daemon and without a registry.
//
// Files and a description go in. Images, an index of them for several systems, and an
// archive in the image layout of OCI come out, which container runtimes load. The same
// input always makes the same bytes: files are sorted, belong to root, and have the one
// time that the caller gives.
package oci

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is a file in an image: a regular one, or a symbolic link. Folders follow from the
// names.
type File struct {
	Name    string // without a slash before it
	Mode    int64  // permissions of a regular file
	Link    string // target of a symbolic link
	Content []byte
}

// Layer makes a layer. The folders named are there even if nothing is in them.
func Layer(files []File, created time.Time, folders ...string) (v1.Layer, error) {
	text, err := Archive(files, created, folders...)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// Archive writes files as tar, each folder before its content.
func Archive(files []File, created time.Time, folders ...string) ([]byte, error) {
	all := map[string]*tar.Header{}
	content := map[string][]byte{}
	for _, f := range files {
		if all[f.Name] != nil {
			return nil, fmt.Errorf("two files are called %s", f.Name)
		}
		all[f.Name], content[f.Name] = f.header(), f.Content
		folders = append(folders, path.Dir(f.Name))
	}
	for _, dir := range folders {
		for ; dir != "." && all[dir] == nil; dir = path.Dir(dir) {
			all[dir] = &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}
		}
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		h := all[name]
		h.ModTime, h.Format = created, tar.FormatPAX
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(content[name]); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func (f *File) header() *tar.Header {
	if f.Link != "" {
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: f.Name, Linkname: f.Link, Mode: 0o777}
	}
	return &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Mode: f.Mode, Size: int64(len(f.Content))}
}

// Save writes an index as an archive in the layout of
// https://github.com/opencontainers/image-spec/blob/main/image-layout.md
// Container runtimes load it under the name and the tag.
func Save(file string, index v1.ImageIndex, name, tag string) error {
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	to, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = to.AppendIndex(index, layout.WithAnnotations(map[string]string{
			"io.containerd.image.name":          name + ":" + tag, // what containerd reads
			"org.opencontainers.image.ref.name": tag,
		}))
	}
	if err != nil {
		return err
	}
	files, err := readFolder(dir)
	if err != nil {
		return err
	}
	text, err := Archive(files, time.Unix(0, 0))
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

func readFolder(dir string) ([]File, error) {
	var files []File
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(root, name)
		files = append(files, File{Name: filepath.ToSlash(name), Mode: 0o644, Content: text})
		return err
	})
	return files, err
}

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
