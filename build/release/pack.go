// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"kubeproxy/build/release/oci"
)

// listed is an image that is made from folders, from bottom to top. Tests make those that
// a cluster needs beside ours.
type listed struct {
	Names      []string `json:"names"`
	Folders    []string `json:"folders"`
	Entrypoint []string `json:"entrypoint"`
	Cmd        []string `json:"cmd"`
	User       string   `json:"user"`
}

// packImages writes images for this machine as an archive for docker load or ctr import.
func packImages(_ context.Context, o *options) error {
	text, err := os.ReadFile(o.list)
	if err != nil {
		return err
	}
	var list []listed
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("%s: %w", o.list, err)
	}
	images := map[name.Tag]v1.Image{}
	layers := map[string]v1.Layer{}
	for _, l := range list {
		img, err := l.image(o, layers)
		if err != nil {
			return fmt.Errorf("image %v: %w", l.Names, err)
		}
		for _, n := range l.Names {
			tag, err := name.NewTag(n, name.StrictValidation)
			if err != nil {
				return err
			}
			images[tag] = img
		}
	}
	return tarball.MultiWriteToFile(o.out, images)
}

func (l *listed) image(o *options, known map[string]v1.Layer) (v1.Image, error) {
	var layers []v1.Layer
	for _, folder := range l.Folders {
		if known[folder] == nil {
			layer, err := o.folderLayer(folder)
			if err != nil {
				return nil, err
			}
			known[folder] = layer
		}
		layers = append(layers, known[folder])
	}
	run := v1.Config{Entrypoint: l.Entrypoint, Cmd: l.Cmd, User: l.User, Env: []string{path}}
	about := oci.About{Title: l.Names[0], Version: o.version, Created: o.created}
	return oci.Image(about, v1.Platform{OS: "linux", Architecture: runtime.GOARCH}, run, layers...)
}

// folderLayer makes a layer of a folder. It is not compressed: it stays on this machine.
func (o *options) folderLayer(folder string) (v1.Layer, error) {
	var files []oci.File
	var folders []string
	err := filepath.WalkDir(folder, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == folder {
			return err
		}
		f := oci.File{}
		if f.Name, err = filepath.Rel(folder, file); err != nil {
			return err
		}
		switch {
		case d.IsDir():
			folders = append(folders, f.Name)
			return nil
		case d.Type()&fs.ModeSymlink != 0:
			f.Link, err = os.Readlink(file)
		default:
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				f.Mode = int64(info.Mode().Perm())
				f.Content, err = os.ReadFile(file)
			}
		}
		files = append(files, f)
		return err
	})
	if err != nil {
		return nil, err
	}
	text, err := oci.Archive(files, o.created, folders...)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressionLevel(gzip.NoCompression))
}
