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
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
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
