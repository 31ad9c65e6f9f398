// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

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
