// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"kubeproxy/platform/modes"
)

// manFolder is where make release wants the pages. They are written by a test, so that the
// program does not link what writes them.
var manFolder = flag.String("man", "", "write the man pages to this folder")

// TestManPages writes the man pages, one for each command, and checks that each has what
// the help has.
func TestManPages(t *testing.T) {
	folder := *manFolder
	if folder == "" {
		folder = t.TempDir()
	} else if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	root := newRoot(streams{}, modes.All())
	root.DisableAutoGenTag = true // which has a date of its own
	header := &doc.GenManHeader{Title: "KUBE-PROXY", Section: "8", Source: "kube-proxy " + buildInfo().Version, Manual: "Service proxy"}
	if err := doc.GenManTree(root, header, folder); err != nil {
		t.Fatal(err)
	}
	each(root, func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".8"
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		page := strings.ReplaceAll(string(text), `\-`, "-")
		for _, want := range append([]string{".TH", cmd.Short}, strings.Fields(cmd.Use)[:1]...) {
			if !strings.Contains(page, want) {
				t.Errorf("%s lacks %q", name, want)
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !f.Hidden && !strings.Contains(page, "--"+f.Name) {
				t.Errorf("%s lacks --%s", name, f.Name)
			}
		})
	})
}
