// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kubeproxy/build/release/bom"
	"kubeproxy/build/release/chart"
)

// checksums is the file with the checksum of every other one, for sha256sum -c.
const checksums = "SHA256SUMS"

// pluginName is the file that kubectl looks for when somebody types kubectl svcproxy.
const pluginName = "kubectl-svcproxy"

// layOut writes everything that is released: images, binaries, what they are made of,
// the man pages, the chart, the kustomize bases, and checksums.
func layOut(ctx context.Context, o *options) error {
	if err := o.emptied(); err != nil {
		return err
	}
	for _, step := range []func(context.Context, *options) error{saveImages, copyBinaries, copyPlugins, listParts, packMan, packChart, sum} {
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
