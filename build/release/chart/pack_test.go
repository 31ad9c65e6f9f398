// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"slices"
	"testing"
	"time"

	helm "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
)

// TestPack loads the packed chart of a commit without a tag, whose name looks like a
// number, with images of a registry.
func TestPack(t *testing.T) {
	s := source()
	s.Version, s.Image, s.Home = "1234567", "registry.example/team/kubeproxy", "https://git.example/kubeproxy"
	name, text, err := s.Pack(time.Unix(1, 0))
	if err != nil {
		t.Fatal(err)
	}
	c, err := loader.LoadArchive(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil || name != "kubeproxy-0.0.0-1234567.tgz" || c.Metadata.AppVersion != "1234567" {
		t.Errorf("%s has version %s of the application: %v", name, c.Metadata.AppVersion, err)
	}
	if m := c.Metadata; m.Home != s.Home || !slices.Equal(m.Sources, []string{s.Home}) || m.Icon == "" || len(m.Maintainers) == 0 ||
		m.Annotations["artifacthub.io/images"] != "- name: kubeproxy-iptables\n  image: "+s.Image+"-iptables:1234567\n- name: kubeproxy\n  image: "+s.Image+":1234567\n" {
		t.Errorf("metadata %+v", m)
	}
	if got := at(c.Values, "image", "repository"); got != s.Image {
		t.Errorf("images are %v, want %s", got, s.Image)
	}
	if !slices.ContainsFunc(c.Files, func(f *helm.File) bool {
		return f.Name == "README.md" && bytes.Contains(f.Data, []byte("| `image.repository` | string | `\""+s.Image+"\"` |"))
	}) {
		t.Error("the packed chart has no README, or one with another image")
	}
}

// TestChartVersions checks that Helm takes the version of each commit.
func TestChartVersions(t *testing.T) {
	for application, want := range map[string]string{
		"v1.2.3": "1.2.3", "v1.2.3-4-gabcdef0": "1.2.3-4-gabcdef0", "dev": "0.0.0-dev", "1234567": "0.0.0-1234567", "0123456": "0.0.0-g0123456",
	} {
		got := chartVersion(application)
		m := &helm.Metadata{APIVersion: "v2", Name: "kubeproxy", Version: got}
		if err := m.Validate(); err != nil || got != want {
			t.Errorf("%s: %s, want %s: %v", application, got, want, err)
		}
	}
}
