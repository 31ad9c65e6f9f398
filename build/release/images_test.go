// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/cli"
	kubefake "helm.sh/helm/v3/pkg/kube/fake"
	helmregistry "helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
)

const created = "2026-01-02T03:04:05Z"

// revision is a commit.
const revision = "0123456789abcdef0123456789abcdef01234567"

// compile builds the program of each system as make image does, by their places in the
// folder that it returns.
func compile(t *testing.T, source string, systems map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for system, name := range systems {
		goos, goarch, _ := strings.Cut(system, "-")
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=v1.2.3,abc,"+created,
			"-o", filepath.Join(dir, name), source)
		build.Dir = filepath.Join("..", "..")
		build.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build for %s: %v\n%s", system, err, out)
		}
	}
	return dir
}

func binaries(t *testing.T) string {
	t.Helper()
	return compile(t, "./cmd/kube-proxy", map[string]string{
		"linux-amd64": "linux-amd64/kube-proxy", "linux-arm64": "linux-arm64/kube-proxy", "windows-amd64": "windows-amd64/kube-proxy.exe",
	})
}

func plugins(t *testing.T) string {
	t.Helper()
	return compile(t, "./cmd/kubectl-svcproxy", map[string]string{"linux-amd64": "linux-amd64", "windows-amd64": "windows-amd64.exe"})
}

// save lays out a release in a new folder.
func save(t *testing.T, binaries, plugins string) string {
	t.Helper()
	out, man := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(man, "kube-proxy.8"), []byte(".TH\n"), 0o644))
	args := []string{"release", "-man", man, "-plugins", plugins, "-binaries", binaries, "-out", out, "-version", "v1.2.3+4", "-revision", revision, "-created", created, "-source", "https://example.com/kubeproxy"}
	must(t, run(t.Context(), args))
	return out
}

// TestRelease lays out a release twice. Both are the same, bit by bit. It unpacks an
// image for each system, and runs those for this one.
func TestRelease(t *testing.T) {
	programs, plugins := binaries(t), plugins(t)
	first, second := save(t, programs, plugins), save(t, programs, plugins)
	testSame(t, first, second)
	check := exec.CommandContext(t.Context(), "sha256sum", "--check", "--quiet", checksums)
	check.Dir = first
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("checksums: %v\n%s", err, out)
	}
	t.Run("plain", func(t *testing.T) {
		testPlain(t, load(t, filepath.Join(first, "kubeproxy-v1.2.3-4.oci.tar"), "localhost/kubeproxy:v1.2.3-4"))
	})
	t.Run("with commands", func(t *testing.T) {
		testCommands(t, load(t, filepath.Join(first, "kubeproxy-iptables-v1.2.3-4.oci.tar"), "localhost/kubeproxy-iptables:v1.2.3-4"))
	})
	t.Run("chart", func(t *testing.T) { testPacked(t, filepath.Join(first, "kubeproxy-1.2.3-4.tgz")) })
	t.Run("parts", func(t *testing.T) { testParts(t, first) })
	t.Run("push", func(t *testing.T) { testPush(t, programs) })
}

// testSame compares the files of two releases with each other, and their names with what
// a release has.
func testSame(t *testing.T, first, second string) {
	t.Helper()
	found, err := os.ReadDir(first)
	must(t, err)
	var names []string
	for _, f := range found {
		names = append(names, f.Name())
		if !bytes.Equal(read(t, filepath.Join(first, f.Name())), read(t, filepath.Join(second, f.Name()))) {
			t.Errorf("%s: two builds differ", f.Name())
		}
	}
	want := []string{
		checksums,
		"kube-proxy-v1.2.3-4-linux-amd64", "kube-proxy-v1.2.3-4-linux-amd64.cdx.json",
		"kube-proxy-v1.2.3-4-linux-arm64", "kube-proxy-v1.2.3-4-linux-arm64.cdx.json", "kube-proxy-v1.2.3-4-man.tar.gz",
		"kube-proxy-v1.2.3-4-windows-amd64.cdx.json", "kube-proxy-v1.2.3-4-windows-amd64.exe",
		"kubectl-svcproxy-v1.2.3-4-linux-amd64", "kubectl-svcproxy-v1.2.3-4-linux-amd64.cdx.json",
		"kubectl-svcproxy-v1.2.3-4-windows-amd64.cdx.json", "kubectl-svcproxy-v1.2.3-4-windows-amd64.exe",
		"kubeproxy-1.2.3-4.tgz", "kubeproxy-deploy-v1.2.3-4.tar.gz",
		"kubeproxy-iptables-v1.2.3-4-linux-amd64.cdx.json", "kubeproxy-iptables-v1.2.3-4-linux-arm64.cdx.json",
		"kubeproxy-iptables-v1.2.3-4.oci.tar",
		"kubeproxy-v1.2.3-4-linux-amd64.cdx.json", "kubeproxy-v1.2.3-4-linux-arm64.cdx.json", "kubeproxy-v1.2.3-4-windows-amd64.cdx.json",
		"kubeproxy-v1.2.3-4.oci.tar", origin,
	}
	if !slices.Equal(names, want) {
		t.Errorf("a release has %q, want %q", names, want)
	}
}

// testPacked loads the chart as helm install does.
func testPacked(t *testing.T, file string) {
	c, err := loader.Load(file)
	must(t, err)
	if err := c.Validate(); err != nil || c.Metadata.Version != "1.2.3-4" || c.Metadata.AppVersion != "v1.2.3-4" {
		t.Errorf("chart %s for version %s: %v", c.Metadata.Version, c.Metadata.AppVersion, err)
	}
}

// testParts reads the lists of what programs and images are made of.
func testParts(t *testing.T, dir string) {
	for name, want := range map[string][]string{
		"kubectl-svcproxy-v1.2.3-4-windows-amd64": {"pkg:golang/std@", "pkg:golang/sigs.k8s.io/yaml@"},
		"kube-proxy-v1.2.3-4-windows-amd64":       {"pkg:golang/std@", "pkg:golang/k8s.io/client-go@"},
		"kubeproxy-v1.2.3-4-windows-amd64":        {"pkg:golang/k8s.io/client-go@"},
		"kubeproxy-iptables-v1.2.3-4-linux-arm64": {"pkg:golang/github.com/google/nftables@", "pkg:deb/debian/iptables@1.8.9-2?arch=arm64&distro=bookworm"},
	} {
		list := parts(t, read(t, filepath.Join(dir, name+".cdx.json")))
		for _, w := range want {
			if !slices.ContainsFunc(*list.Components, func(c cdx.Component) bool { return strings.HasPrefix(c.PackageURL, w) }) {
				t.Errorf("%s does not list %s", name, w)
			}
		}
	}
	binary := parts(t, read(t, filepath.Join(dir, "kube-proxy-v1.2.3-4-linux-amd64.cdx.json"))).Metadata.Component
	if want := fmt.Sprintf("%x", sha256.Sum256(read(t, filepath.Join(dir, "kube-proxy-v1.2.3-4-linux-amd64")))); (*binary.Hashes)[0].Value != want {
		t.Errorf("the list of the binary is of %v, which has the SHA-256 %s", *binary.Hashes, want)
	}
}

// parts reads a list. Each part has a hash, each module a license, and all hang together.
func parts(t *testing.T, text []byte) *cdx.BOM {
	t.Helper()
	var list cdx.BOM
	must(t, cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&list))
	if !strings.HasPrefix(list.SerialNumber, "urn:uuid:") {
		t.Errorf("serial number %q", list.SerialNumber)
	}
	reached := map[string]bool{list.Metadata.Component.BOMRef: true}
	for _, d := range *list.Dependencies {
		for _, ref := range *d.Dependencies {
			reached[ref] = reached[d.Ref]
		}
	}
	for _, c := range append(*list.Components, *list.Metadata.Component) {
		if !reached[c.BOMRef] || c.Hashes == nil && c.Name != "std" {
			t.Errorf("%s: reached %v, hashes %v", c.BOMRef, reached[c.BOMRef], c.Hashes)
		}
		if c.Licenses == nil && !strings.HasPrefix(c.PackageURL, "pkg:deb/") {
			t.Errorf("%s has no license", c.BOMRef)
		}
	}
	return &list
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	return text
}

// load reads an archive as a container runtime does, and returns its images by platform.
func load(t *testing.T, file, name string) map[string]v1.Image {
	t.Helper()
	dir := t.TempDir()
	untar(t, bytes.NewReader(read(t, file)), dir)
	outer, err := layout.ImageIndexFromPath(dir)
	must(t, err)
	list, err := outer.IndexManifest()
	if err != nil || len(list.Manifests) != 1 {
		t.Fatalf("%s: %v, want one index", file, err)
	}
	if got := list.Manifests[0].Annotations["io.containerd.image.name"]; got != name {
		t.Errorf("%s: name %q, want %q", file, got, name)
	}
	index, err := outer.ImageIndex(list.Manifests[0].Digest)
	must(t, err)
	manifest, err := index.IndexManifest()
	must(t, err)
	images := map[string]v1.Image{}
	referred := map[v1.Hash]bool{}
	for _, m := range manifest.Manifests {
		img, err := index.Image(m.Digest)
		must(t, err)
		if m.Platform.OS == "unknown" {
			referred[testReferrer(t, img)] = true
			continue
		}
		if err := validate.Image(img); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		images[m.Platform.String()] = img
		testLabels(t, img)
	}
	for system, img := range images {
		if digest, err := img.Digest(); err != nil || !referred[digest] {
			t.Errorf("%s: no list of what it is made of refers to %s, %v", system, digest, err)
		}
	}
	return images
}

// testReferrer reads the list of what an image is made of, and returns the digest of the image.
func testReferrer(t *testing.T, img v1.Image) v1.Hash {
	t.Helper()
	m, err := img.Manifest()
	must(t, err)
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 || m.Subject == nil || m.ArtifactType != partsType {
		t.Fatalf("%d layers, %v, in %+v", len(layers), err, m)
	}
	content, err := layers[0].Compressed()
	must(t, err)
	defer content.Close()
	text, err := io.ReadAll(content)
	must(t, err)
	if of := parts(t, text).Metadata.Component; (*of.Hashes)[0].Value != m.Subject.Digest.Hex || !strings.Contains(of.PackageURL, "@sha256%3A"+m.Subject.Digest.Hex+"?") {
		t.Errorf("the list is of %s, and refers to %s", of.PackageURL, m.Subject.Digest)
	}
	return m.Subject.Digest
}

func testLabels(t *testing.T, img v1.Image) {
	t.Helper()
	licenses := "Apache-2.0"
	config, err := img.ConfigFile()
	must(t, err)
	manifest, err := img.Manifest()
	must(t, err)
	labels := config.Config.Labels
	if strings.HasSuffix(labels["org.opencontainers.image.title"], "-iptables") {
		licenses = "Apache-2.0 AND GPL-2.0-only AND GPL-2.0-or-later AND LGPL-2.1-or-later"
	}
	for key, want := range map[string]string{"source": "https://example.com/kubeproxy", "vendor": "The kubeproxy Authors", "version": "v1.2.3+4", "revision": revision, "created": created, "licenses": licenses} {
		if label, note := labels["org.opencontainers.image."+key], manifest.Annotations["org.opencontainers.image."+key]; label != want || note != want {
			t.Errorf("label %s is %q, the annotation %q, want %q", key, label, note, want)
		}
	}
	if config.OS == "linux" && config.Config.User != nobody {
		t.Errorf("user %q, want %s", config.Config.User, nobody)
	}
}

// unpack unpacks the layers of an image, one upon the other.
func unpack(t *testing.T, img v1.Image) string {
	t.Helper()
	if img == nil {
		t.Fatal("no image for this system")
	}
	dir := t.TempDir()
	content := mutate.Extract(img)
	defer content.Close()
	untar(t, content, dir)
	return dir
}

func untar(t *testing.T, from io.Reader, dir string) {
	t.Helper()
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s belongs to %d:%d", h.Name, h.Uid, h.Gid)
		}
		to := filepath.Join(dir, filepath.FromSlash(h.Name))
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(to, 0o755)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, to)
		case tar.TypeReg:
			var text []byte
			if text, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(to, text, h.FileInfo().Mode())
			}
		}
		must(t, err)
	}
}

func testPlain(t *testing.T, images map[string]v1.Image) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		testMachine(t, filepath.Join(unpack(t, images["linux/"+arch]), program), machine)
	}
	inRoot(t, unpack(t, images["linux/amd64"]), "v1.2.3", "/"+program, "--version")
	windows := unpack(t, images["windows/amd64"])
	for _, f := range []string{"Files/kube-proxy.exe", "Files/Windows/System32/config/SYSTEM", "Hives"} {
		if _, err := os.Stat(filepath.Join(windows, f)); err != nil {
			t.Error(err)
		}
	}
	if text := read(t, filepath.Join(windows, "Files/kube-proxy.exe")); !bytes.HasPrefix(text, []byte("MZ")) {
		t.Error("kube-proxy.exe is no program for Windows")
	}
}

func testCommands(t *testing.T, images map[string]v1.Image) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		root := unpack(t, images["linux/"+arch])
		testMachine(t, filepath.Join(root, program), machine)
		for _, name := range []string{"xtables-nft-multi", "xtables-legacy-multi", "ipset"} {
			testLibraries(t, root, filepath.Join("usr/sbin", name), machine)
		}
		if release := string(read(t, filepath.Join(root, "etc/os-release"))); !strings.Contains(release, "VERSION_CODENAME=bookworm") {
			t.Errorf("%s: os-release has\n%s", arch, release)
		}
	}
	root := unpack(t, images["linux/amd64"])
	inRoot(t, root, "v1.2.3", "/"+program, "--version")
	for _, family := range []string{"iptables", "ip6tables"} {
		inRoot(t, root, "(nf_tables)", "/usr/sbin/"+family+"-nft-restore", "--version")
		inRoot(t, root, "(legacy)", "/usr/sbin/"+family+"-legacy-restore", "--version")
		inRoot(t, root, "[!] --ctstate", "/usr/sbin/"+family+"-nft", "-m", "conntrack", "-m", "comment", "-j", "DNAT", "--help")
	}
	inRoot(t, root, "ipset v7", "/usr/sbin/ipset", "version")
}

// inRoot runs a program with an unpacked image as its root.
func inRoot(t *testing.T, root, want string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "chroot", append([]string{root}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%s: %v, want %q in\n%s", strings.Join(args, " "), err, want, out)
	}
}

func testMachine(t *testing.T, file string, want elf.Machine) {
	t.Helper()
	f, err := elf.Open(file)
	must(t, err)
	defer f.Close()
	if f.Machine != want {
		t.Errorf("%s is for %v, want %v", file, f.Machine, want)
	}
}

// testLibraries follows what a program loads. All of it must be in the image, in the
// folders where the loader of Debian looks.
func testLibraries(t *testing.T, root, file string, machine elf.Machine) {
	t.Helper()
	testMachine(t, filepath.Join(root, file), machine)
	folders, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("folders of libraries: %q, %v", folders, err)
	}
	load := []string{filepath.Join(root, file)}
	plugins, _ := filepath.Glob(filepath.Join(folders[0], "xtables/*.so"))
	for load = append(load, plugins...); len(load) > 0; load = load[1:] {
		f, err := elf.Open(load[0])
		if err != nil {
			t.Fatalf("what %s loads: %v", file, err)
		}
		needed, err := f.ImportedLibraries()
		must(t, err)
		for _, n := range needed {
			if at := filepath.Join(folders[0], n); !strings.HasPrefix(n, "libc.so") && !strings.HasPrefix(n, "ld-linux") && !slices.Contains(load, at) {
				load = append(load, at)
			}
		}
		f.Close()
	}
}

// testPush pushes to a registry, finds there what each image is made of, and installs the chart from there, as helm
// install does, with a client that no cluster is behind.
func testPush(t *testing.T, binaries string) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	args := []string{"push", "-binaries", binaries, "-name", host + "/team/kubeproxy", "-version", "v1.2.3", "-revision", revision, "-created", created}
	for range 2 { // the second one finds all there
		must(t, run(t.Context(), args))
	}
	for _, image := range []string{"kubeproxy", "kubeproxy-iptables"} {
		testReferrers(t, host+"/team/"+image+":v1.2.3")
	}
	testInstall(t, "oci://"+host+"/team/charts/kubeproxy", host+"/team/kubeproxy-iptables:v1.2.3")
	if err := run(t.Context(), []string{"push", "-binaries", binaries}); err == nil || !strings.Contains(err.Error(), "want make push IMAGE=HOST/TEAM/kubeproxy") {
		t.Errorf("pushed without a registry: %v", err)
	}
}

// testReferrers asks the registry what refers to the images of an index.
func testReferrers(t *testing.T, image string) {
	t.Helper()
	tag, err := name.NewTag(image)
	must(t, err)
	index, err := remote.Index(tag)
	must(t, err)
	list, err := index.IndexManifest()
	must(t, err)
	for _, m := range list.Manifests {
		if m.Platform.OS == "unknown" {
			continue
		}
		found, err := remote.Referrers(tag.Digest(m.Digest.String()))
		must(t, err)
		all, err := found.IndexManifest()
		if err != nil || len(all.Manifests) != 1 {
			t.Fatalf("%s for %s: %+v refer to it, %v", image, m.Platform, all, err)
		}
		if of := testReferrer(t, fetch(t, tag.Digest(all.Manifests[0].Digest.String()))); of != m.Digest {
			t.Errorf("%s for %s: the list is of %s", image, m.Platform, of)
		}
	}
}

func fetch(t *testing.T, ref name.Digest) v1.Image {
	t.Helper()
	img, err := remote.Image(ref)
	must(t, err)
	return img
}

// testInstall installs the chart and runs its test.
func testInstall(t *testing.T, chart, image string) {
	t.Helper()
	client, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP())
	must(t, err)
	able := chartutil.DefaultCapabilities.Copy()
	able.KubeVersion = chartutil.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}
	helm := &action.Configuration{
		RegistryClient: client, Capabilities: able, KubeClient: &kubefake.PrintingKubeClient{Out: io.Discard}, Releases: storage.Init(driver.NewMemory()),
		Log: func(string, ...any) {},
	}
	install := action.NewInstall(helm)
	install.PlainHTTP, install.Version, install.ReleaseName, install.Namespace = true, "1.2.3", "kubeproxy", "kube-system"
	settings := cli.New()
	settings.RepositoryCache = t.TempDir()
	file, err := install.LocateChart(chart, settings)
	must(t, err)
	c, err := loader.Load(file)
	must(t, err)
	release, err := install.Run(c, map[string]any{"kubeconfig": map[string]any{"configMapName": "mine"}})
	if err != nil || !strings.Contains(release.Manifest, "image: "+image+"\n") {
		t.Fatalf("%v: want image %s in\n%s", err, image, release.Manifest)
	}
	tested, err := action.NewReleaseTesting(helm).Run("kubeproxy")
	if err != nil || len(tested.Hooks) != 1 || tested.Hooks[0].LastRun.Phase != "Succeeded" || strings.Contains(release.Manifest, "kubeproxy-test") {
		t.Errorf("helm test: %v, %+v", err, tested.Hooks)
	}
	if _, err := os.Stat(filepath.Join(settings.RepositoryCache, "kubeproxy-1.2.3.tgz")); err != nil {
		t.Error(err)
	}
}

// must fails the test of err.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
