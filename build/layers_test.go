// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"go/ast"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const header = `// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

`

func checkHeader(s *source) []finding {
	if !bytes.HasPrefix(s.text, []byte(header)) {
		return []finding{{1, "want the two-line licence header and a blank line"}}
	}
	return nil
}

// layer lists what a folder may not import; its tests are exempt. Bans and exceptions are
// prefixes of whole path elements.
type layer struct {
	folder string // with a slash at the end; empty for the whole module
	bans   []string
	except []string
}

// describesModes matches what translates the configuration for backends: package mode, the
// table of modes, and the files of each backend that describe its mode. The rest of a
// backend knows no configuration.
var describesModes = regexp.MustCompile(`^platform/(modes?/|[^/]+/[^/]+/mode(_[a-z]+)?\.go$)`)

const std = "<outside the standard library>"

// layers all apply, not only the first that matches.
var layers = []layer{
	{"", []string{"k8s.io/kubernetes", "sigs.k8s.io/controller-runtime"}, nil},
	{"common/service/", []string{std}, nil},
	{"common/", []string{module + "/platform", module + "/config", module + "/cmd"}, nil},
	{"common/reconcile/", []string{"k8s.io", "sigs.k8s.io"}, nil},
	{"common/files/", []string{"k8s.io", "sigs.k8s.io"}, nil},
	{"common/route/", []string{"k8s.io", "sigs.k8s.io"}, nil},
	{"common/statusview/", []string{"k8s.io", "sigs.k8s.io"}, nil},
	{"common/track/", []string{"k8s.io/client-go"}, nil},
	{"common/plandiff/", []string{"regexp"}, nil}, // changes and objects have their Service port
	{"common/takeover/", []string{"k8s.io", "sigs.k8s.io", "regexp"}, []string{"k8s.io/klog"}},
	{"config/", []string{module + "/platform", module + "/cmd"}, nil},
	{"cmd/kubectl-svcproxy/", []string{std}, []string{module + "/common/printable"}},
	{"platform/", []string{module + "/config", module + "/cmd"}, nil}, // see describesModes
	{"platform/mode/", []string{module + "/platform", "k8s.io", "sigs.k8s.io"}, nil},
	{"platform/linux/", []string{module + "/platform/windows", "k8s.io", "sigs.k8s.io"}, []string{"k8s.io/klog"}},
	{"platform/windows/", []string{module + "/platform/linux", "k8s.io", "sigs.k8s.io"}, []string{"k8s.io/klog"}},
}

func checkImports(s *source) []finding {
	var found []finding
	for _, spec := range s.tree.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser refuses it first
		}
		for _, l := range layers {
			if l.bansImport(s, name) {
				found = append(found, s.at(spec).report("%s may not import %s", s.dir(), name))
				break
			}
		}
	}
	return found
}

func (l layer) bansImport(s *source, name string) bool {
	if !strings.HasPrefix(s.path, l.folder) || s.test() && l.folder != "" {
		return false
	}
	if name == module+"/config" && describesModes.MatchString(s.path) {
		return within(name, slices.DeleteFunc(slices.Clone(l.bans), func(ban string) bool { return ban == name }))
	}
	return within(name, l.bans) && !within(name, l.except)
}

// within returns whether name is one of paths or below one.
func within(name string, paths []string) bool {
	first, _, _ := strings.Cut(name, "/")
	for _, p := range paths {
		if name == p || strings.HasPrefix(name, p+"/") {
			return true
		}
		if p == std && (first == module || strings.Contains(first, ".")) {
			return true
		}
	}
	return false
}

// rooms bounds the product files of a folder and their lines, 0 for no bound. The command
// holds commands only; what runs is in packages that one can know.
var rooms = []struct {
	folder       string
	files, lines int
}{
	{"cmd/kube-proxy/", 15, 2000},
	{"cmd/kubectl-svcproxy/", 5, 525},
	{"cmd/kube-proxy/internal/agent/", 25, 0},
	{"cmd/kube-proxy/internal/examine/", 25, 0},
	{"cmd/kube-proxy/internal/host/", 25, 0},
	{"cmd/kube-proxy/internal/winservice/", 25, 0},
	{"common/report/", 25, 0},
}

func TestRooms(t *testing.T) {
	files := tree(t, func(path string) bool { return strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") })
	for _, r := range rooms {
		n, lines := 0, 0
		for path, text := range files {
			if name, in := strings.CutPrefix(path, r.folder); in && !strings.Contains(name, "/") {
				n, lines = n+1, lines+bytes.Count(text, []byte("\n"))
			}
		}
		if n == 0 || n > r.files || r.lines > 0 && lines > r.lines {
			t.Errorf("%s has %d files with %d lines, want at most %d with %d: find what a package of its own could do", r.folder, n, lines, r.files, r.lines)
		}
	}
}

// checkSystem requires that operating systems are selected by file names, where a reader
// sees them, and not in the code.
func checkSystem(s *source) []finding {
	var found []finding
	for _, group := range s.tree.Comments {
		for _, c := range group.List {
			if strings.HasPrefix(c.Text, "//go:build ") && !other(s.name()) {
				found = append(found, s.at(c).report("build line: use a file name ending in _linux, _windows or _other"))
			}
		}
	}
	ast.Inspect(s.tree, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "GOOS" || strings.HasPrefix(s.path, "cmd/") {
			return true
		}
		if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "runtime" {
			found = append(found, s.at(sel).report("runtime.GOOS: let a file suffix or the caller choose"))
		}
		return true
	})
	return found
}

func other(name string) bool {
	return strings.HasSuffix(name, "_other.go") || strings.HasSuffix(name, "_other_test.go")
}

// unwanted are words that age badly or belong to one workplace. A file is searched with
// the slow pattern only if it contains one of the parts. Both are written so that they do
// not match themselves.
var unwanted = []struct {
	parts []string
	words *regexp.Regexp
	why   string
}{
	{
		[]string{"proxy.golang", "sum.golang", "gcr.", "ghcr.", "quay.", "docker.", "registry.k8s", "mcr.", "deb.debian"},
		regexp.MustCompile(`(proxy|sum)\.golang\.[o]rg|gcr\.[i]o|ghcr\.[i]o|quay\.[i]o|docker\.[i]o|registry\.k8s\.[i]o|mcr\.microsoft\.[c]om|deb\.debian\.[o]rg`),
		"names a registry: readers have their own mirrors",
	},
	{[]string{"ssue"}, regexp.MustCompile(`(?i)\bissues? #?[0-9]`), "names an issue: say the reason itself"},
	{[]string{"/wo" + "rk"}, regexp.MustCompile("(^|[\\s\"'(=`])/[w]ork/"), "names a path of one machine"},
	{[]string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}, regexp.MustCompile(`\b(TODO|FIXME|XXX)[:( ]`), "leaves a note: do it or drop it"},
}

func checkWords(text []byte) []finding {
	var found []finding
	for _, u := range unwanted {
		if !slices.ContainsFunc(u.parts, func(p string) bool { return bytes.Contains(text, []byte(p)) }) {
			continue
		}
		for i, line := range bytes.Split(text, []byte("\n")) {
			if word := u.words.Find(line); word != nil {
				found = append(found, finding{i + 1, strconv.Quote(string(word)) + " " + u.why})
			}
		}
	}
	return found
}

// authoredFiles matches the files that people write. go.sum is not one.
var authoredFiles = regexp.MustCompile(`(\.(go|md|mod|sh|txt|ya?ml|json)|/run|Makefile)$`)

func TestWords(t *testing.T) {
	files := tree(t, authoredFiles.MatchString)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		for _, f := range checkWords(files[path]) {
			t.Errorf("%s:%d: %s", path, f.line, f.text)
		}
	}
}
