// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"kubeproxy/test/cache"
	"kubeproxy/test/thirdparty"
)

// image is an image of an archive, as build/release pack reads it. Folders become layers,
// from bottom to top.
type image struct {
	Names      []string `json:"names"`
	Folders    []string `json:"folders"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	User       string   `json:"user,omitempty"`
}

// imagePrograms are the programs in images, by the name of their folder. Their places
// follow from placed.
var imagePrograms = map[string]thirdparty.Module{
	"agnhost": thirdparty.Kubernetes, "kube-proxy": thirdparty.Kubernetes,
	"regression-issue-74839": thirdparty.Kubernetes, "coredns": thirdparty.CoreDNS,
}

// testImages are those that the cluster itself needs, and those that the tests of
// Kubernetes ask for, see test/utils/image/manifest.go in its repository, by names of this
// machine, see registries.yaml. Instead of the originals, one root with Debian's programs
// serves for all.
func testImages(folder string) []image {
	const e2e = "localhost/e2e/"
	in := func(names ...string) []string {
		var all []string
		for _, name := range names {
			all = append(all, filepath.Join(folder, name))
		}
		return all
	}
	return []image{
		{Names: []string{e2e + "agnhost:2.66.1", e2e + "agnhost:2.55"}, Folders: in("root", "agnhost"), Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}},
		{Names: []string{e2e + "nginx:1.27.0-2", e2e + "nginx:1.28.0-2"}, Folders: in("root", "agnhost"), Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}},
		{Names: []string{e2e + "busybox:1.37.0-2", "localhost/build/distroless-iptables:v0.9.9"}, Folders: in("root"), Cmd: []string{"sh"}},
		{Names: []string{e2e + "glibc-dns-testing:2.1.1"}, Folders: in("root"), Cmd: []string{"sleep", "36000"}},
		{Names: []string{e2e + "regression-issue-74839:1.5"}, Folders: in("root", "regression-issue-74839"), Entrypoint: []string{"/regression-issue-74839"}},
		{Names: []string{"localhost/kubernetes/pause:3.10.2"}, Folders: in("pause"), Entrypoint: []string{"/pause"}, User: "65535:65535"},
		{Names: []string{"localhost/kubernetes/coredns:test"}, Folders: in("coredns"), Entrypoint: []string{"/coredns"}},
		{Names: []string{"localhost/kubernetes/kube-proxy:test"}, Folders: in("root", "kube-proxy"), Entrypoint: []string{"/usr/local/bin/kube-proxy"}},
	}
}

// placed returns where an image has a program.
func placed(name string) string {
	if name == "kube-proxy" {
		return "usr/local/bin/kube-proxy"
	}
	return name
}

// TestImages returns an archive with the images of testImages. It is made once for each
// version of the programs, and kept where these are.
func TestImages(ctx context.Context, out io.Writer) (archive string, err error) {
	programs := map[string]string{}
	for name, module := range imagePrograms {
		folder, err := module.Build(ctx, out, name)
		if err != nil {
			return "", err
		}
		programs[name] = filepath.Join(folder, name)
	}
	recipe, err := json.Marshal(map[string]any{"programs": programs, "images": testImages(""), "root": rootPrograms, "texts": rootTexts, "certificate": certificate})
	if err != nil {
		return "", err
	}
	folder := filepath.Join(beside(programs["agnhost"]), fmt.Sprintf("images-%x", sha256.Sum256(recipe))[:23])
	archive = filepath.Join(folder, "images.tar")
	return archive, cache.Make(ctx, archive, waitingFor(out, "the images"), func(part string) error {
		fmt.Fprintln(out, "making the images of the tests")
		return makeImages(ctx, programs, part)
	})
}

// beside returns the folder of what is made of a program and kept as long as that.
func beside(program string) string { return filepath.Dir(filepath.Dir(program)) }

// waitingFor returns a report that another process makes something.
func waitingFor(out io.Writer, what string) func() {
	return func() { fmt.Fprintf(out, "waiting for %s, which another process makes\n", what) }
}

// makeImages collects the folders of the images, and packs them.
func makeImages(ctx context.Context, programs map[string]string, archive string) error {
	folder, err := os.MkdirTemp(beside(programs["agnhost"]), "images")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	for name, file := range programs {
		if err := copyFile(file, filepath.Join(folder, name, placed(name))); err != nil {
			return err
		}
	}
	err = errors.Join(makeRoot(filepath.Join(folder, "root")), buildPause(ctx, filepath.Join(folder, "pause", "pause")))
	if err == nil {
		err = copyCertificate(ctx, filepath.Join(folder, "agnhost"))
	}
	if err == nil {
		err = os.Symlink("agnhost", filepath.Join(folder, "agnhost", "agnhost-2"))
	}
	if err == nil {
		err = pack(ctx, folder, archive)
	}
	return err
}

// certificate are files of the image of agnhost, without which it serves no TLS, see its
// Dockerfile.
var certificate = []string{"localhost.crt", "localhost.key"}

func copyCertificate(ctx context.Context, to string) error {
	from, err := thirdparty.Kubernetes.Source(ctx, "k8s.io/kubernetes/test/images/agnhost/porter")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range certificate {
		errs = append(errs, copyFile(filepath.Join(from, name), filepath.Join(to, name)))
	}
	return errors.Join(errs...)
}

func buildPause(ctx context.Context, file string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "kubeproxy/test/nodes/pause")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	_, err := output(cmd)
	return err
}

// pack has the module of the product's own images make the archive, which has the library
// for it.
func pack(ctx context.Context, folder, archive string) error {
	text, err := json.Marshal(testImages(folder))
	if err != nil {
		return err
	}
	list := filepath.Join(folder, "images.json")
	if err := os.WriteFile(list, text, 0o644); err != nil {
		return err
	}
	top, err := output(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "kubeproxy"))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", ".", "pack", "-list", list, "-out", archive)
	cmd.Dir = filepath.Join(filepath.Clean(top[:len(top)-1]), "build", "release")
	_, err = output(cmd)
	return err
}
