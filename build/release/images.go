// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"kubeproxy/build/release/bom"
	"kubeproxy/build/release/chart"
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

// checksums is the file with the checksum of every other one, for sha256sum -c.
const checksums = "SHA256SUMS"

// pluginName is the file that kubectl looks for when somebody types kubectl svcproxy.
const pluginName = "kubectl-svcproxy"

var releaseSteps = []func(context.Context, *options) error{saveImages, copyBinaries, copyPlugins, listParts, packMan, packChart, attest, sum, sign}

// layOut writes everything that is released: images, binaries, what they are made of,
// the man pages, the chart, the kustomize bases, where they come from, checksums and their signature.
func layOut(ctx context.Context, o *options) error {
	if err := o.emptied(); err != nil {
		return err
	}
	for _, step := range releaseSteps {
		if err := step(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// emptied makes the folder of a release. A file of another version in it would get a
// checksum, too.
func (o *options) emptied() error {
	found, err := os.ReadDir(o.out)
	if err == nil && len(found) > 0 {
		return fmt.Errorf("%s is not empty: remove it, a release has one version", o.out)
	}
	return os.MkdirAll(o.out, 0o755)
}

// systems returns the systems that there are binaries for, and the name of each binary.
func systems() map[string]string {
	all := map[string]string{"windows-amd64": "kube-proxy.exe"}
	for _, arch := range linuxArchs {
		all["linux-"+arch] = "kube-proxy"
	}
	return all
}

func copyBinaries(_ context.Context, o *options) error {
	for system, name := range systems() {
		text, err := o.binary(system, name)
		if err == nil {
			err = os.WriteFile(filepath.Join(o.out, "kube-proxy-"+o.tag()+"-"+system+filepath.Ext(name)), text, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyPlugins writes the plugin of kubectl for each system, and what it is made of.
func copyPlugins(_ context.Context, o *options) error {
	files, err := filepath.Glob(filepath.Join(o.plugins, "*-*"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("-plugins %q: there are none: want those that make plugins builds", o.plugins)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(o.out, pluginName+"-"+o.tag()+"-"+filepath.Base(f)), text, 0o755)
		}
		if err == nil {
			s := &bom.Subject{Name: pluginName, Version: o.version, Created: o.created, Binary: f}
			err = o.listOf(s, strings.TrimSuffix(filepath.Base(f), ".exe"))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// packMan writes the man pages, as they lie below /usr/share.
func packMan(_ context.Context, o *options) error {
	pages, err := filepath.Glob(filepath.Join(o.man, "*.8"))
	if err != nil {
		return err
	}
	if len(pages) == 0 {
		return fmt.Errorf("-man %q: there are no pages: want those that go test ./cmd/kube-proxy -run ManPages -man DIR writes", o.man)
	}
	files := map[string][]byte{}
	for _, p := range pages {
		if files["man/man8/"+filepath.Base(p)], err = os.ReadFile(p); err != nil {
			return err
		}
	}
	text, err := chart.Compressed(files, o.created)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "kube-proxy-"+o.tag()+"-man.tar.gz"), text, 0o644)
}

// ofImages returns the chart for the images of this version.
func (o *options) ofImages() *chart.Source {
	return &chart.Source{Folder: o.chart, Version: o.tag(), Image: o.name, Home: o.source}
}

// saveChart writes the chart, and returns the name of its file.
func (o *options) saveChart() (string, error) {
	name, text, err := o.ofImages().Pack(o.created)
	if err != nil {
		return "", err
	}
	file := filepath.Join(o.out, name)
	return file, os.WriteFile(file, text, 0o644)
}

// printChart writes the chart beside images that were just built, and says where. The one
// in build/chart does not know their names.
func printChart(_ context.Context, o *options) error {
	file, err := o.saveChart()
	if err == nil {
		fmt.Println(file)
	}
	return err
}

// packChart writes the chart and the kustomize bases of this version.
func packChart(_ context.Context, o *options) error {
	if _, err := o.saveChart(); err != nil {
		return err
	}
	text, err := o.ofImages().PackBases(o.created)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "kubeproxy-deploy-"+o.tag()+".tar.gz"), text, 0o644)
}

// listParts writes what each binary is made of. Those of images come with them.
func listParts(_ context.Context, o *options) error {
	for system, name := range systems() {
		s := &bom.Subject{Name: "kube-proxy", Version: o.version, Created: o.created, Binary: filepath.Join(o.binaries, system, name)}
		if err := o.listOf(s, system); err != nil {
			return err
		}
	}
	return nil
}

func (o *options) listOf(s *bom.Subject, system string) error {
	text, err := bom.Text(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, s.Name+"-"+o.tag()+"-"+system+".cdx.json"), text, 0o644)
}

// sum writes the checksum of every file.
func sum(_ context.Context, o *options) error {
	files, err := filepath.Glob(filepath.Join(o.out, "*"))
	if err != nil {
		return err
	}
	slices.Sort(files)
	var list strings.Builder
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(text), filepath.Base(f))
	}
	return os.WriteFile(filepath.Join(o.out, checksums), []byte(list.String()), 0o644)
}

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
