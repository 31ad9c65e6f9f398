// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Cache keeps packages by their checksum.
type Cache struct {
	Folder string
	Out    io.Writer // says what is downloaded

	current map[string]bool // architectures whose index is up to date
}

// Fetch returns the file of a package. It downloads what the cache lacks.
func (c *Cache) Fetch(ctx context.Context, p Package) (string, error) {
	file := filepath.Join(c.Folder, p.SHA256+".deb")
	if err := verify(file, p); err == nil {
		return file, nil
	}
	a, err := c.apt(ctx, p.Arch)
	if err != nil {
		return "", err
	}
	fmt.Fprintln(c.Out, "   download", p)
	folder, err := os.MkdirTemp(a.folder, "download")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	if _, err := a.run(ctx, folder, "apt-get", "-q", "download", p.Name+"="+p.Version); err != nil {
		return "", a.gone(ctx, p, err)
	}
	found, err := filepath.Glob(filepath.Join(folder, "*.deb"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("apt-get download %s left %d files", p.Name, len(found))
	}
	if err == nil {
		err = verify(found[0], p)
	}
	if err != nil {
		return "", err
	}
	return file, os.Rename(found[0], file)
}

func verify(file string, p Package) error {
	sum, err := checksum(file)
	if err == nil && sum != p.SHA256 {
		err = fmt.Errorf("%s: SHA-256 %s, packages.txt wants %s", p, sum, p.SHA256)
	}
	return err
}

func checksum(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// apt runs apt's programs for one architecture, with package lists of their own. It uses
// the mirrors and the keys that this machine is configured for, see sources.list(5).
type apt struct{ folder, arch string }

// apt returns an apt with an index that it reads once.
func (c *Cache) apt(ctx context.Context, arch string) (apt, error) {
	a := apt{filepath.Join(c.Folder, arch), arch}
	if c.current[arch] {
		return a, nil
	}
	if err := a.update(ctx); err != nil {
		return a, err
	}
	if c.current == nil {
		c.current = map[string]bool{}
	}
	c.current[arch] = true
	return a, nil
}

// update reads the index of the packages.
func (a apt) update(ctx context.Context) error {
	list, err := a.sources(ctx)
	if err != nil {
		return err
	}
	lists := filepath.Join(a.folder, "state/lists")
	err = errors.Join(
		os.MkdirAll(filepath.Join(lists, "partial"), 0o755),
		os.MkdirAll(filepath.Join(a.folder, "cache/archives/partial"), 0o755),
		os.WriteFile(filepath.Join(a.folder, "sources.list"), []byte(list), 0o644))
	if err == nil {
		_, err = a.run(ctx, a.folder, "apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any")
	}
	return err
}

// sources returns lines of sources.list: the suites of the release, at the places where
// this machine has Debian and its security updates.
func (a apt) sources(ctx context.Context) (string, error) {
	text, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(LABEL)|$(SITE)", "Created-By: Packages").Output()
	if err != nil {
		return "", fmt.Errorf("ask apt for its sources: %w; Debian's programs want a Debian with apt to be fetched", err)
	}
	suites := map[string][]string{"Debian": {Release, Release + "-updates"}, "Debian-Security": {Release + "-security"}}
	var list strings.Builder
	for line := range strings.Lines(string(text)) {
		label, site, _ := strings.Cut(strings.TrimSpace(line), "|")
		for _, s := range suites[label] {
			fmt.Fprintf(&list, "deb %s %s main\n", site, s)
		}
		delete(suites, label)
	}
	if suites["Debian"] != nil {
		return "", errors.New("apt knows no source with the label Debian; before the first apt-get update it knows none")
	}
	return list.String(), nil
}

// gone explains why a package could not be downloaded, by what the index has instead.
func (a apt) gone(ctx context.Context, p Package, err error) error {
	text, askErr := a.run(ctx, a.folder, "apt-cache", "show", "--no-all-versions", p.Name)
	if now := field(text, "Version"); askErr == nil && now != p.Version {
		return fmt.Errorf("%s is gone from Debian's mirror, which has %s: run make pins, and read the difference", p, now)
	}
	return fmt.Errorf("download %s: %w", p, err)
}

// field returns a field of the first stanza of a control file.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (a apt) run(ctx context.Context, dir, program string, args ...string) (string, error) {
	options := []string{
		"-o", "Dir::Etc::sourcelist=" + filepath.Join(a.folder, "sources.list"), "-o", "Dir::Etc::sourceparts=-",
		"-o", "Dir::State=" + filepath.Join(a.folder, "state"), "-o", "Dir::State::status=/dev/null",
		"-o", "Dir::Cache=" + filepath.Join(a.folder, "cache"), "-o", "APT::Sandbox::User=",
		"-o", "APT::Architecture=" + a.arch, "-o", "APT::Architectures=" + a.arch,
		"-o", "Acquire::Languages=none", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
	}
	cmd := exec.CommandContext(ctx, program, append(options, args...)...)
	cmd.Dir = dir
	return output(cmd)
}

// output runs a program and returns its standard output; its standard error becomes part
// of the error.
func output(cmd *exec.Cmd) (string, error) {
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	text, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, complaints.String())
	}
	return string(text), err
}
