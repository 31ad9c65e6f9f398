// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/nodes"
)

// TestArchive checks that no cluster is made without an image, before anything is built.
func TestArchive(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "image.tar")
	kit.Must(t, os.WriteFile(file, nil, 0o600))
	for _, c := range []struct{ image, tag, want string }{
		{"", "v1", "want -image and -tag"},
		{file, "", "want -image and -tag"},
		{folder, "v1", "is no file"},
		{file + ".none", "v1", "no such file"},
	} {
		p := proxyFlags{image: c.image, chart: nodes.Chart{Tag: c.tag}}
		_, err := p.build(t.Context(), usual)
		kit.Check(t, err != nil && strings.Contains(err.Error(), c.want), "image %q and tag %q: %v, want %q", c.image, c.tag, err, c.want)
	}
	p := proxyFlags{image: file, chart: nodes.Chart{Tag: "v1"}}
	got, err := p.archive()
	kit.Check(t, err == nil && got == file, "an image: %q, %v", got, err)
}

// TestAPIPort checks which ports the flag takes, and that the chart has the address.
func TestAPIPort(t *testing.T) {
	for text, want := range map[string]string{"": "", "7445": "https://127.0.0.1:7445", "0": "error", "70000": "error", "a": "error"} {
		var p proxyFlags
		err := p.setPort(text)
		failed := err != nil
		kit.Check(t, failed == (want == "error") && (failed || p.chart.Server == want), "port %q: %v, server %q, want %s", text, err, p.chart.Server, want)
	}
}
