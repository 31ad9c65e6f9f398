// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"kubeproxy/build/release/bom"
	"kubeproxy/build/release/debian"
	"kubeproxy/build/release/hive"
	"kubeproxy/build/release/oci"
)

// linuxArchs are the architectures of Linux, by the names that Go and Debian share.
var linuxArchs = []string{"amd64", "arm64"}

// wants returns whether images are for a system.
func (o *options) wants(system string) bool {
	return slices.Contains(strings.Fields(o.systems), system)
}

// archs returns the architectures of Linux that images are for.
func (o *options) archs() []string {
	return slices.DeleteFunc(slices.Clone(linuxArchs), func(arch string) bool { return !o.wants("linux-" + arch) })
}

const (
	program = "usr/local/bin/kube-proxy"
	// nobody is the user of the program, unless a pod asks for another one. Programming a
	// node needs root, because a pod cannot give capabilities to other users. Commands
	// such as render and status do not need it.
	nobody = "65532:65532"
	path   = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// saveImages writes an archive for each variant of the image, and what each of its images is made of.
func saveImages(ctx context.Context, o *options) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	for _, v := range o.variants() {
		built, err := v.build(ctx, o)
		if err != nil {
			return fmt.Errorf("image %s: %w", v.about.Title, err)
		}
		for name, text := range built.parts {
			if err := os.WriteFile(filepath.Join(o.out, name), text, 0o644); err != nil {
				return err
			}
		}
		file := filepath.Join(o.out, v.about.Title+"-"+o.tag()+".oci.tar")
		if err := oci.Save(file, built.index, o.name+v.suffix, o.tag()); err != nil {
			return err
		}
		fmt.Printf("%s  %s:%s\n", file, o.name+v.suffix, o.tag())
	}
	return nil
}

// variant is an image with the same name on every system.
type variant struct {
	suffix string // of the name
	about  oci.About
	images []func(context.Context, *options, oci.About) ([]v1.Image, error)
}

func (o *options) variants() []variant {
	about := func(title, description, licenses string) oci.About {
		return oci.About{Title: title, Description: description, Licenses: licenses, Source: o.source, Version: o.version, Revision: o.revision, Created: o.created}
	}
	return []variant{
		{"", about("kubeproxy", "Service proxy for Kubernetes nodes, for mode nftables on Linux and for Windows", bom.License), []func(context.Context, *options, oci.About) ([]v1.Image, error){plain, windows}},
		{"-iptables", about("kubeproxy-iptables", "Service proxy for Kubernetes nodes, with the commands of iptables and ipset for modes iptables, ipvs and userspace", bom.License+" AND "+debian.Licenses), []func(context.Context, *options, oci.About) ([]v1.Image, error){withCommands}},
	}
}

// built is an index of images, and of what refers to them.
type built struct {
	index v1.ImageIndex
	parts map[string][]byte // lists of what the images are made of, by the names of files
}

// partsType is the type of the lists, see https://cyclonedx.org/specification/overview/
const partsType = "application/vnd.cyclonedx+json"

func (v *variant) build(ctx context.Context, o *options) (built, error) {
	var images, lists []v1.Image
	parts := map[string][]byte{}
	for _, build := range v.images {
		more, err := build(ctx, o, v.about)
		if err != nil {
			return built{}, err
		}
		images = append(images, more...)
	}
	for _, img := range images {
		name, text, err := v.parts(o, img)
		if err != nil {
			return built{}, err
		}
		list, err := oci.Referrer(img, partsType, text)
		if err != nil {
			return built{}, err
		}
		parts[name], lists = text, append(lists, list)
	}
	index, err := oci.Index(v.about, append(images, lists...)...)
	return built{index, parts}, err
}

// parts returns the list of what an image is made of, and the name of its file.
func (v *variant) parts(o *options, img v1.Image) (name string, text []byte, err error) {
	digest, err := img.Digest()
	if err != nil {
		return "", nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return "", nil, err
	}
	system := config.OS + "-" + config.Architecture
	s := &bom.Subject{
		Name: v.about.Title, Version: o.version, Created: o.created, Binary: filepath.Join(o.binaries, system, systems()[system]),
		Image: &bom.Image{Repository: o.name + v.suffix, Tag: o.tag(), OS: config.OS, Arch: config.Architecture, Digest: digest.Hex},
	}
	if v.suffix != "" {
		if s.Image.Packages, err = debian.List(config.Architecture); err != nil {
			return "", nil, err
		}
	}
	text, err = bom.Text(s)
	return v.about.Title + "-" + o.tag() + "-" + system + ".cdx.json", text, err
}

// plain returns the images for Linux that have the program only.
func plain(_ context.Context, o *options, a oci.About) ([]v1.Image, error) {
	var images []v1.Image
	for _, arch := range o.archs() {
		img, err := o.linux(a, arch)
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	return images, nil
}

// withCommands returns the images for Linux that have Debian's iptables and ipset, too.
func withCommands(ctx context.Context, o *options, a oci.About) ([]v1.Image, error) {
	var images []v1.Image
	for _, arch := range o.archs() {
		packages, err := debian.List(arch)
		if err != nil {
			return nil, err
		}
		files := debian.Root()
		for _, p := range packages {
			more, err := o.cache.Files(ctx, p)
			if err != nil {
				return nil, err
			}
			files = append(files, more...)
		}
		layer, err := oci.Layer(files, o.created, "run", "tmp", "proc", "sys", "dev")
		if err != nil {
			return nil, err
		}
		img, err := o.linux(a, arch, layer)
		if err != nil {
			return nil, err
		}
		images = append(images, img)
	}
	return images, nil
}

// linux returns an image with the program on top of layers.
func (o *options) linux(a oci.About, arch string, below ...v1.Layer) (v1.Image, error) {
	text, err := o.binary("linux-"+arch, "kube-proxy")
	if err != nil {
		return nil, err
	}
	layer, err := oci.Layer([]oci.File{{Name: program, Mode: 0o755, Content: text}}, o.created)
	if err != nil {
		return nil, err
	}
	run := v1.Config{Entrypoint: []string{"/" + program}, Env: []string{path}, User: nobody, WorkingDir: "/"}
	return oci.Image(a, v1.Platform{OS: "linux", Architecture: arch}, run, append(below, layer)...)
}

// windows returns the image for HostProcess containers. Its lowest layer has what
// Windows wants in one, and the version of Windows does not matter, as the container has
// the node's files.
func windows(_ context.Context, o *options, a oci.About) ([]v1.Image, error) {
	if !o.wants("windows-amd64") {
		return nil, nil
	}
	text, err := o.binary("windows-amd64", "kube-proxy.exe")
	if err != nil {
		return nil, err
	}
	var hives []oci.File
	for _, name := range hive.Names {
		hives = append(hives, oci.File{Name: "Files/Windows/System32/config/" + name, Mode: 0o644, Content: hive.Empty()})
	}
	base, err := oci.Layer(hives, o.created)
	if err != nil {
		return nil, err
	}
	top, err := oci.Layer([]oci.File{{Name: "Files/kube-proxy.exe", Mode: 0o755, Content: text}}, o.created, "Hives")
	if err != nil {
		return nil, err
	}
	run := v1.Config{Entrypoint: []string{"kube-proxy.exe"}, Env: []string{`PATH=C:\Windows\system32;C:\Windows`}}
	img, err := oci.Image(a, v1.Platform{OS: "windows", Architecture: "amd64"}, run, base, top)
	return []v1.Image{img}, err
}

// binary reads the program that was built for a system, such as linux-amd64.
func (o *options) binary(system, name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(o.binaries, system, name))
}
