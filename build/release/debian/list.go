// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package debian takes programs out of Debian's packages, for images.
//
// A list of packages goes in, with version and checksum for each architecture. The files
// that the programs need come out, at the paths of a merged /usr. Packages come from the
// mirror that apt on this machine is configured for, and stay in a cache. Nothing is
// installed here, and no program of a package runs.
package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the list
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"kubeproxy/build/release/oci"
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

// unwanted are the parts of packages that no program in an image opens.
var unwanted = []string{
	"usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/", "usr/share/doc-base/",
	"usr/share/iptables/", "usr/share/bash-completion/", "etc/init.d/", "etc/default/", "usr/include/",
}

// Files returns the files of a package that an image has: programs, libraries, licences,
// and the record by which scanners know the package.
func (c *Cache) Files(ctx context.Context, p Package) ([]oci.File, error) {
	deb, err := c.Fetch(ctx, p)
	if err != nil {
		return nil, err
	}
	text, err := output(exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb))
	if err != nil {
		return nil, err
	}
	control, err := output(exec.CommandContext(ctx, "dpkg-deb", "-f", deb))
	if err != nil {
		return nil, err
	}
	files, err := wantedFiles(p.Name, strings.NewReader(text))
	record := oci.File{Name: "var/lib/dpkg/status.d/" + p.Name, Mode: 0o644, Content: []byte(control)}
	return append(files, record), err
}

func wantedFiles(pkg string, archive io.Reader) ([]oci.File, error) {
	var files []oci.File
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		f := oci.File{Name: merged(path.Clean(h.Name)), Mode: h.Mode & 0o755, Link: h.Linkname}
		if h.Typeflag == tar.TypeDir || !wanted(pkg, f.Name) {
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg:
			f.Content, err = io.ReadAll(r)
		case tar.TypeSymlink:
		default:
			err = fmt.Errorf("%s: neither a file nor a link", h.Name)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
}

func wanted(pkg, name string) bool {
	if pkg == "base-files" {
		return strings.HasSuffix(name, "/os-release")
	}
	if strings.HasPrefix(name, "usr/share/doc/") {
		return path.Base(name) == "copyright"
	}
	if strings.Contains(name, "/gconv/") {
		return false
	}
	for _, u := range unwanted {
		if strings.HasPrefix(name, u) {
			return false
		}
	}
	return true
}

// old are the folders of the root that Debian has as links below usr.
var old = []string{"bin", "sbin", "lib", "lib64"}

// merged returns the place of a file below usr.
func merged(name string) string {
	for _, o := range old {
		if strings.HasPrefix(name, o+"/") {
			return "usr/" + name
		}
	}
	return name
}

// Root returns the links that a root with a merged /usr has.
func Root() []oci.File {
	var links []oci.File
	for _, o := range old {
		links = append(links, oci.File{Name: o, Link: "usr/" + o})
	}
	return links
}

// Release is the release of Debian that the packages are from.
const Release = "bookworm"

// Licenses are those of what images have of the packages, an expression of
// https://spdx.org/licenses/ The texts are in usr/share/doc of the images.
const Licenses = "GPL-2.0-only AND GPL-2.0-or-later AND LGPL-2.1-or-later"

//go:embed packages.txt
var packages string

// Package is a package at one version.
type Package struct {
	Name, Arch, Version, SHA256 string
}

// String returns what a message calls the package.
func (p Package) String() string { return p.Name + " " + p.Version + " for " + p.Arch }

// List returns the packages for an architecture.
func List(arch string) ([]Package, error) { return parse(packages, arch) }

func parse(text, arch string) ([]Package, error) {
	var list []Package
	n := 0
	for line := range strings.Lines(text) {
		n++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 4 || len(fields[3]) != 64 {
			return nil, fmt.Errorf("packages.txt:%d: want a name, an architecture, a version and a SHA-256", n)
		}
		if fields[1] == arch {
			list = append(list, Package{fields[0], fields[1], fields[2], fields[3]})
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("packages.txt has no package for %s", arch)
	}
	return list, nil
}

// names are the packages that images have. Others that these depend on are left out, as
// nothing in an image loads their files; a test follows what the programs load.
var names = []string{
	"base-files", // os-release, by which scanners know the release
	"ipset",
	"iptables",
	"libc6",
	"libip4tc2",
	"libip6tc2",
	"libipset13",
	"libmnl0",
	"libnetfilter-conntrack3",
	"libnfnetlink0",
	"libnftnl11",
	"libxtables12",
	"netbase", // names of protocols
}

// listHeader begins a list of packages.
const listHeader = `# The packages of Debian ` + Release + ` in the images, from its signed index. make pins
# rewrites this list when the mirror has newer ones.
`

// Pin returns the list of the packages that the mirror has now.
func (c *Cache) Pin(ctx context.Context, archs ...string) (string, error) {
	var list strings.Builder
	list.WriteString(listHeader)
	for _, arch := range archs {
		a, err := c.apt(ctx, arch)
		if err != nil {
			return "", err
		}
		for _, name := range names {
			text, err := a.run(ctx, a.folder, "apt-cache", "show", "--no-all-versions", name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&list, "%s %s %s %s\n", name, arch, field(text, "Version"), field(text, "SHA256"))
		}
	}
	return list.String(), nil
}
