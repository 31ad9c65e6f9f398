// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "kubeproxy"

// A rule checks one Go file and returns its findings.
type rule struct {
	name  string
	check func(*source) []finding
}

// rules are the house rules for single Go files that neither gofmt nor go vet nor
// staticcheck has. Each has a table of bad sources in cases_test.go.
var rules = []rule{
	{"header", checkHeader},
	{"imports", checkImports},
	{"system", checkSystem},
	{"length", checkLength},
	{"params", checkParams},
	{"nesting", checkNesting},
	{"always", checkAlways},
	{"state", checkState},
	{"names", checkNames},
	{"docs", checkDocs},
	{"contracts", checkContracts},
}

// source is a parsed Go file. Its path is relative to the module's root and has forward
// slashes.
type source struct {
	path string
	text []byte
	set  *token.FileSet
	tree *ast.File
}

func parse(path string, text []byte) (*source, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return &source{path, text, set, tree}, nil
}

func (s *source) test() bool   { return strings.HasSuffix(s.path, "_test.go") }
func (s *source) dir() string  { return filepath.ToSlash(filepath.Dir(s.path)) }
func (s *source) name() string { return filepath.Base(s.path) }

// line returns the line of p, and lines how many a node covers.
func (s *source) line(p token.Pos) int   { return s.set.Position(p).Line }
func (s *source) lines(n ast.Node) int   { return s.line(n.End()) - s.line(n.Pos()) + 1 }
func (s *source) at(n ast.Node) position { return position{s, s.line(n.Pos())} }

// finding is one breach of a rule.
type finding struct {
	line int
	text string
}

type position struct {
	file *source
	line int
}

func (p position) report(format string, args ...any) finding {
	return finding{p.line, fmt.Sprintf(format, args...)}
}

func TestHouseRules(t *testing.T) {
	comments := map[string]int{} // package comments by folder
	files := tree(t, isGo)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		s, err := parse(path, files[path])
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		for _, r := range rules {
			for _, f := range r.check(s) {
				t.Errorf("%s:%d: %s (%s)", path, f.line, f.text, r.name)
			}
		}
		countComment(comments, s)
	}
	for _, text := range misdocumented(comments) {
		t.Error(text)
	}
}

// countComment counts package comments, including those in test files, where one might
// hide.
func countComment(comments map[string]int, s *source) {
	n := 0
	if s.tree.Doc != nil {
		n = 1
	}
	comments[s.dir()] += n
}

func misdocumented(comments map[string]int) []string {
	var texts []string
	for _, dir := range slices.Sorted(maps.Keys(comments)) {
		if n := comments[dir]; n != 1 {
			texts = append(texts, fmt.Sprintf("%s: %d package comments, want 1", dir, n))
		}
	}
	return texts
}

func isGo(path string) bool { return filepath.Ext(path) == ".go" }

// skippedFolders are folders to which the rules do not apply.
var skippedFolders = []string{".git", "bin", "dist", "testdata", "build/.cache"}

// tree reads the module's files for which want is true, by path.
func tree(t *testing.T, want func(path string) bool) map[string][]byte {
	t.Helper()
	root := os.DirFS("..")
	files := map[string][]byte{}
	err := fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains(skippedFolders, path) || slices.Contains(skippedFolders, d.Name())):
			return fs.SkipDir
		case !d.Type().IsRegular() || !want(path):
			return nil
		}
		files[path], err = fs.ReadFile(root, path)
		return err
	})
	if err != nil {
		t.Fatalf("read the module: %v", err)
	}
	if len(files) == 0 {
		t.Fatal("read the module: no file wanted")
	}
	return files
}

// TestModuleFiles keeps the build reproducible from module versions alone.
func TestModuleFiles(t *testing.T) {
	files := tree(t, func(path string) bool { return filepath.Base(path) == "go.mod" })
	for path, text := range files {
		for _, f := range replacements(text) {
			t.Errorf("%s:%d: %s", path, f.line, f.text)
		}
	}
}

func replacements(mod []byte) []finding {
	var found []finding
	for i, line := range bytes.Split(mod, []byte("\n")) {
		if words := bytes.Fields(line); len(words) > 0 && string(words[0]) == "replace" {
			found = append(found, finding{i + 1, "replace: a module must build from published versions"})
		}
	}
	return found
}
