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
	"regexp"
	"slices"
	"strconv"
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

// The limits of sizes, for the reader's screen and memory.
const (
	maxFileLines = 800
	maxFuncLines = 80
	maxParams    = 5
	maxNesting   = 3
)

func checkLength(s *source) []finding {
	var found []finding
	if n := bytes.Count(s.text, []byte("\n")); n > maxFileLines {
		found = append(found, s.at(s.tree).report("file has %d lines, limit %d", n, maxFileLines))
	}
	for _, fn := range functions(s) {
		if n := s.lines(fn.node); n > maxFuncLines {
			found = append(found, s.at(fn.node).report("%s has %d lines, limit %d", fn.name, n, maxFuncLines))
		}
	}
	return found
}

// function is a declared function or a literal outside of any.
type function struct {
	name string
	node ast.Node
	body *ast.BlockStmt // nil if it is written elsewhere
}

func functions(s *source) []function {
	var fns []function
	ast.Inspect(s.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			fns = append(fns, function{n.Name.Name, n, n.Body})
			return false
		case *ast.FuncLit:
			fns = append(fns, function{"function literal", n, n.Body})
			return false
		}
		return true
	})
	return fns
}

// checkParams checks every function type: declared, literal, in interfaces and as a
// field.
func checkParams(s *source) []finding {
	var found []finding
	ast.Inspect(s.tree, func(n ast.Node) bool {
		if fn, ok := n.(*ast.FuncType); ok && fn.Params.NumFields() > maxParams {
			found = append(found, s.at(n).report("%d parameters, limit %d: make a struct", fn.Params.NumFields(), maxParams))
		}
		if fn, ok := n.(*ast.FuncDecl); ok && fn.Name.IsExported() && !s.test() && s.tree.Name.Name != "kit" {
			found = append(found, switches(s, fn)...)
		}
		return true
	})
	return found
}

// switches finds bool parameters, whose meaning is not visible in a call. Those of package kit are
// what a test requires.
func switches(s *source, fn *ast.FuncDecl) []finding {
	var found []finding
	for _, field := range fn.Type.Params.List {
		if id, ok := field.Type.(*ast.Ident); ok && id.Name == "bool" {
			found = append(found, s.at(field).report("%s has a bool parameter: name the choice with a type", fn.Name.Name))
		}
	}
	return found
}

// checkAlways finds constant conditions, such as one that was disabled to see a test
// fail.
func checkAlways(s *source) []finding {
	var found []finding
	constant := func(all ...ast.Expr) {
		for _, e := range all {
			e = ast.Unparen(e)
			if not, ok := e.(*ast.UnaryExpr); ok {
				e = ast.Unparen(not.X)
			}
			if id, ok := e.(*ast.Ident); ok && (id.Name == "true" || id.Name == "false") {
				found = append(found, s.at(id).report("%s is always %s", id.Name, id.Name))
			}
		}
	}
	ast.Inspect(s.tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR {
				constant(n.X, n.Y)
			}
		case *ast.IfStmt:
			constant(n.Cond)
		case *ast.ForStmt:
			constant(n.Cond)
		}
		return true
	})
	return found
}

// checkNesting counts the blocks around a statement. An else-if is no deeper than its if,
// a case no deeper than its switch, and a function literal is as deep as its statement.
func checkNesting(s *source) []finding {
	var found []finding
	for _, fn := range functions(s) {
		if fn.body == nil {
			continue
		}
		ast.Walk(nest{deep: func(b *ast.BlockStmt) {
			found = append(found, s.at(b).report("%s nests deeper than %d blocks", fn.name, maxNesting))
		}}, fn.body)
	}
	return found
}

// nest walks a function and calls deep with each outermost block that is too deep.
type nest struct {
	depth int
	opens bool // the next block belongs to a statement
	deep  func(*ast.BlockStmt)
}

func (v nest) Visit(n ast.Node) ast.Visitor {
	switch n := n.(type) {
	case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt, *ast.SwitchStmt, *ast.TypeSwitchStmt, *ast.SelectStmt:
		v.opens = true
		return v
	case *ast.BlockStmt:
		if v.opens {
			v.depth++
		}
		if v.depth > maxNesting {
			v.deep(n)
			return nil
		}
	}
	v.opens = false
	return v
}

// checkContracts forbids to ask a value for more than its contract: a Backend or Plan for
// another interface of package reconcile, and an error for those that it joins. The
// former say all in Outcome, the latter are walked by package errtree. It also forbids to
// name a condition by a text, as package condition has all names.
func checkContracts(s *source) []finding {
	var all []finding
	if s.test() {
		return nil
	}
	ast.Inspect(s.tree, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.TypeAssertExpr:
			if of, ok := x.Type.(*ast.SelectorExpr); ok && isNamed(of.X, "reconcile") {
				all = append(all, s.at(x).report("type assertion to reconcile.%s: an Outcome says all of a round, and Backend has all methods", of.Sel.Name))
			}
		case *ast.CallExpr:
			if of, ok := x.Fun.(*ast.SelectorExpr); ok && strings.HasSuffix(of.Sel.Name, "Condition") && len(x.Args) > 0 && isText(x.Args[0]) {
				all = append(all, s.at(x).report("%s of a text: package condition has the names of conditions", of.Sel.Name))
			}
		case *ast.InterfaceType:
			if s.dir() != "common/errtree" && asksForList(x) {
				all = append(all, s.at(x).report("interface with Unwrap() []error: package errtree walks joined errors"))
			}
		}
		return true
	})
	return all
}

// isText returns whether x is a string that is not empty, or begins with one.
func isText(x ast.Expr) bool {
	if sum, ok := x.(*ast.BinaryExpr); ok {
		x = sum.X
	}
	b, ok := x.(*ast.BasicLit)
	return ok && b.Kind == token.STRING && b.Value != `""`
}

func isNamed(x ast.Expr, name string) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == name
}

// asksForList reports whether x has a method Unwrap that returns a list.
func asksForList(x *ast.InterfaceType) bool {
	for _, m := range x.Methods.List {
		f, ok := m.Type.(*ast.FuncType)
		if !ok || len(m.Names) != 1 || m.Names[0].Name != "Unwrap" || f.Results == nil {
			continue
		}
		if _, list := f.Results.List[0].Type.(*ast.ArrayType); list {
			return true
		}
	}
	return false
}

var contractSamples = map[string]sample{
	"assertion":            {text: body("_, ok := b.(reconcile.Watcher)"), want: []string{"type assertion to reconcile.Watcher"}},
	"in a test":            {path: "p/p_test.go", text: body("_, ok := b.(reconcile.Watcher)")},
	"to an error":          {text: body("_, ok := err.(*reconcile.PortError)")},
	"to another interface": {text: body("_, ok := b.(io.Closer)")},
	"joined errors":        {text: body("_, ok := err.(interface{ Unwrap() []error })"), want: []string{"interface with Unwrap() []error"}},
	"condition":            {text: body(`m.SetCondition("lacking-" + f, "x")`), want: []string{"SetCondition of a text"}},
	"declared condition":   {text: body(`m.SetCondition(condition.Lacking.Of(f), "x")`)},
	"wrapped error":        {text: body("_, ok := err.(interface{ Unwrap() error })")},
	"where they are walked": {
		path: "common/errtree/errtree.go", text: body("_, ok := err.(interface{ Unwrap() []error })"),
	},
}

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
	{"cmd/kubectl-svcproxy/", []string{std}, []string{module + "/common"}},
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
	{"cmd/kubectl-svcproxy/", 5, 1300},
	{"cmd/kube-proxy/internal/agent/", 25, 0},
	{"cmd/kube-proxy/internal/examine/", 25, 0},
	{"cmd/kube-proxy/internal/host/", 25, 0},
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
	if strings.Contains(s.name(), "_amd64") || strings.Contains(s.name(), "_arm64") {
		found = append(found, s.at(s.tree).report("file name: what is for one processor alone is not checked for each commit"))
	}
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
