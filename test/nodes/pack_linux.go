// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/template"
)

// partsFile describes the parts of a cluster in their folder.
const partsFile = "parts.json"

// Pack puts everything that a cluster and its tests consist of into an empty folder, for a
// machine in which nothing can be built and which takes long to unpack images. It will
// have the folder at some path. Programs are linked, so the folder has to be in the file
// system of the user's cache.
func (c *Cluster) Pack(ctx context.Context, folder, at string) error {
	tests, err := c.testFolder(ctx)
	if err != nil {
		return err
	}
	programs := filepath.Join(folder, "programs")
	all, err := filepath.Glob(filepath.Join(c.Programs, "*"))
	if err != nil {
		return err
	}
	for _, name := range testPrograms {
		all = append(all, filepath.Join(tests, name))
	}
	if err := linkAll(all, programs); err != nil {
		return err
	}
	if err := c.fillStore(ctx, folder); err != nil {
		return fmt.Errorf("unpack the images: %w", err)
	}
	inside := filepath.Join(at, filepath.Base(programs))
	text, err := json.Marshal(Cluster{Programs: inside, Tests: inside, Store: filepath.Join(at, storeFolder)})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, partsFile), text, 0o644)
}

// storeFolder is the name of the folder with the images, as containerd keeps them.
const storeFolder = "containerd"

// fillStore has containerd import the images, in a machine of its own, and keeps the
// folder that it fills.
func (c *Cluster) fillStore(ctx context.Context, folder string) (err error) {
	m := c.Machine(fmt.Sprintf("store%d", os.Getpid())) // apart from those of other processes
	m.Folder = filepath.Join(folder, "store")
	var config string
	if config, err = m.configureContainerd(); err != nil {
		return err
	}
	m.Steps = append(m.containerdSteps(config), m.importSteps(c.Archives)...)
	m.Steps = append(m.Steps, Step{"filled", []string{"touch", "/var/tmp/filled"}, Once})
	defer func() { // first, as a step that fails leaves a part of what it makes
		err = errors.Join(err, m.remove())
		if err == nil {
			err = os.Rename(m.path("var/lib/containerd"), filepath.Join(folder, storeFolder))
		}
		err = errors.Join(err, os.RemoveAll(m.Folder))
	}()
	if err := m.addNamespace(); err != nil {
		return err
	}
	if err := m.boot(nil); err != nil {
		return err
	}
	return poll(ctx, patience, func() (bool, error) {
		_, err := os.Stat(m.path("var/tmp/filled"))
		return err == nil, nil
	})
}

// configureContainerd writes the configuration file for the machine's containerd.
func (m *Machine) configureContainerd() (file string, err error) {
	t, err := template.ParseFS(files, "files/node/containerd.toml")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(m.Folder, 0o755); err != nil {
		return "", err
	}
	file = m.path("containerd.toml")
	f, err := os.Create(file)
	if err != nil {
		return "", err
	}
	return file, errors.Join(t.Execute(f, map[string]string{"CNI": m.path("cni")}), f.Close())
}

// OpenParts returns the description for Up of a cluster whose parts are in a folder that
// Pack filled.
func OpenParts(out io.Writer, folder string, count int) (*Cluster, error) {
	text, err := os.ReadFile(filepath.Join(folder, partsFile))
	if err != nil {
		return nil, fmt.Errorf("read the parts of the cluster: %w", err)
	}
	c := &Cluster{out: out}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("read the parts of the cluster: %w", err)
	}
	c.Nodes = count
	return c, nil
}
