// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/cli"
	kubefake "helm.sh/helm/v3/pkg/kube/fake"
	helmregistry "helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
)

// testPush pushes to a registry, finds there what each image is made of, and installs the chart from there, as helm
// install does, with a client that no cluster is behind.
func testPush(t *testing.T, binaries string) {
	server := httptest.NewServer(registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	args := []string{"push", "-binaries", binaries, "-name", host + "/team/kubeproxy", "-version", "v1.2.3", "-revision", "abc", "-created", created}
	for range 2 { // the second one finds all there
		if err := run(t.Context(), args); err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	list, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Manifests {
		if m.Platform.OS == "unknown" {
			continue
		}
		found, err := remote.Referrers(tag.Digest(m.Digest.String()))
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// testInstall installs the chart and runs its test.
func testInstall(t *testing.T, chart, image string) {
	t.Helper()
	client, err := helmregistry.NewClient(helmregistry.ClientOptPlainHTTP())
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	c, err := loader.Load(file)
	if err != nil {
		t.Fatal(err)
	}
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
