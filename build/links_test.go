// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	example = regexp.MustCompile("(?ms)^```.*?^```")
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// TestLinks checks that each relative link in a document leads to a file, and each fragment
// to a heading of it.
func TestLinks(t *testing.T) {
	files := documents(t)
	if len(files) < 20 {
		t.Fatalf("%d documents, want more", len(files))
	}
	for _, file := range files {
		for _, m := range link.FindAllStringSubmatch(readDocument(t, file), -1) {
			if !strings.Contains(m[1], "://") {
				checkLink(t, file, m[1])
			}
		}
	}
}

// documents lists the documents of the tree, without those that make downloads or builds.
func documents(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != ".." && (name[0] == '.' || name == "dist" || name == "bin"):
			return filepath.SkipDir
		case filepath.Ext(name) == ".md":
			files = append(files, strings.TrimPrefix(path, "../"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// checkLink checks a link in a document. Without a path, it leads to the document itself.
func checkLink(t *testing.T, file, link string) {
	t.Helper()
	path, fragment, _ := strings.Cut(link, "#")
	to := file
	if path != "" {
		to = filepath.Join(filepath.Dir(file), path)
	}
	if _, err := os.Stat(filepath.Join("..", to)); err != nil {
		t.Errorf("%s: the link %s leads nowhere: %v", file, link, err)
		return
	}
	if fragment == "" || !strings.HasSuffix(to, ".md") {
		return
	}
	for _, h := range heading.FindAllStringSubmatch(readDocument(t, to), -1) {
		if anchor(h[1]) == fragment {
			return
		}
	}
	t.Errorf("%s: the link %s leads to no heading of %s", file, link, to)
}

// readDocument returns the text of a document without its examples.
func readDocument(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", file))
	if err != nil {
		t.Fatal(err)
	}
	return example.ReplaceAllString(string(text), "")
}

// anchor is the fragment of a heading, as GitHub makes it.
func anchor(heading string) string {
	heading = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading, "$1")
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
}
