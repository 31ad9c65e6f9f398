// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/kit"
)

// TestMakeNotesRevision checks that make passes the commit to its builds, as the compiler
// may not look for it.
func TestMakeNotesRevision(t *testing.T) {
	commit, err := exec.Command("git", "-C", "..", "rev-parse", "HEAD").Output()
	if err != nil {
		return // no repository, and so no commit
	}
	made, err := exec.Command("make", "-C", "..", "-n", "bin/kube-proxy").CombinedOutput()
	kit.Need(t, err == nil, "make -n: %v: %s", err, made)
	want := "," + strings.TrimSpace(string(commit)) + ","
	kit.Check(t, strings.Contains(string(made), want), "want %s in\n%s", want, made)
}

// TestNightlyFuzzes has make nightly run each fuzz test there is.
func TestNightlyFuzzes(t *testing.T) {
	made, err := exec.Command("make", "-C", "..", "-n", "nightly").CombinedOutput()
	kit.Check(t, err == nil && strings.Contains(string(made), "build/fuzz.sh"),
		"make -n nightly: %v, want build/fuzz.sh in\n%s", err, made)
	said, err := exec.Command("./fuzz.sh", "none").CombinedOutput()
	kit.Need(t, err == nil, "fuzz.sh: %v: %s", err, said)
	for _, dir := range []string{"cmd", "common", "config", "platform", "test"} {
		err := filepath.WalkDir("../"+dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range regexp.MustCompile(`(?m)^func (Fuzz\w*)\(`).FindAllStringSubmatch(string(text), -1) {
				want := "fuzz: " + m[1] + " of ./" + strings.TrimPrefix(filepath.Dir(path), "../") + ","
				kit.Check(t, strings.Contains(string(said), want), "want %q in\n%s", want, said)
			}
			return err
		})
		kit.Check(t, err == nil, "%v", err)
	}
}

// TestMakeImagesOfBinaries checks that images are laid out after the binaries are built, and
// not beside that, when make may run steps at the same time. Both are only said here.
func TestMakeImagesOfBinaries(t *testing.T) {
	said, err := exec.Command("make", "-C", "..", "-j4", "image", "SYSTEMS=linux-amd64", "go_build=sh -c 'sleep 0.3; echo built' sh", "lay_out=echo laid out $(1)").CombinedOutput()
	built, laid := strings.Index(string(said), "built\n"), strings.Index(string(said), "laid out image\n")
	kit.Check(t, err == nil && built >= 0 && laid >= built,
		"make -j4 image: %v, want what is built, and then laid out, in\n%s", err, said)
}

// TestMakeWithoutEarlierVersion checks that make changes says what it wants where git does
// not know an earlier version.
func TestMakeWithoutEarlierVersion(t *testing.T) {
	said, err := exec.Command("make", "-C", "..", "earlier", "EARLIER=").CombinedOutput()
	kit.Check(t, err != nil && strings.Contains(string(said), "EARLIER=COMMIT names one"),
		"make earlier: %v, and it says\n%s", err, said)
}

// TestLeftOutTestsRun checks that each test that make leaves out of a run exists, and that
// another run has it, in every package where it is left out.
func TestLeftOutTestsRun(t *testing.T) {
	made, err := exec.Command("make", "-C", "..", "-n", "test", "rest").CombinedOutput()
	kit.Need(t, err == nil, "make -n: %v: %s", err, made)
	var runs []testRun
	for line := range strings.Lines(string(made)) {
		if strings.Contains(line, "build/testreport") && !strings.Contains(line, "-exec") && !strings.Contains(line, "SOCKET_ACCELERATION=1") {
			runs = append(runs, readRun(line))
		}
	}
	where := map[string][]string{} // the packages with a test, by its name
	for path, text := range tree(t, func(path string) bool { return strings.HasSuffix(path, "_test.go") }) {
		for _, m := range regexp.MustCompile(`(?m)^func Test(\w+)\(`).FindAllSubmatch(text, -1) {
			where[string(m[1])] = append(where[string(m[1])], filepath.ToSlash(filepath.Dir(path)))
		}
	}
	for _, r := range runs {
		for _, name := range r.skip {
			kit.Check(t, len(where[name]) != 0, "there is no Test%s, which make leaves out", name)
			elsewhere := func(dir string) bool {
				return !r.has(dir) || slices.ContainsFunc(runs, func(r testRun) bool { return r.runs(name, dir) })
			}
			lost := slices.DeleteFunc(slices.Clone(where[name]), elsewhere)
			kit.Check(t, len(lost) == 0, "make leaves out Test%s of %q, and runs it nowhere else", name, lost)
		}
	}
}

// testRun is a call of go test: packages, and names of tests without the word Test.
type testRun struct{ packages, only, skip []string }

func readRun(line string) testRun {
	_, line, _ = strings.Cut(line, " -- ")
	line, _, _ = strings.Cut(line, " ||")
	names := func(flag string) []string {
		if m := regexp.MustCompile(flag + ` '\^Test\((.*?)\)\$'`).FindStringSubmatch(line); m != nil {
			return strings.Split(m[1], "|")
		}
		return nil
	}
	r := testRun{nil, names("-run"), names("-skip")}
	for _, word := range strings.Fields(line) {
		if pkg := strings.TrimPrefix(strings.TrimPrefix(word, "./"), module+"/"); pkg != word {
			r.packages = append(r.packages, pkg)
		}
	}
	return r
}

func (r testRun) has(dir string) bool {
	return slices.ContainsFunc(r.packages, func(pkg string) bool {
		above, below := strings.CutSuffix(pkg, "/...")
		return dir == above || below && strings.HasPrefix(dir, above+"/")
	})
}

func (r testRun) runs(name, dir string) bool {
	return r.has(dir) && !slices.Contains(r.skip, name) && (r.only == nil || slices.Contains(r.only, name))
}

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
	kit.Need(t, len(files) >= 20, "%d documents, want more", len(files))
	for _, file := range files {
		for _, m := range link.FindAllStringSubmatch(readDocument(t, file), -1) {
			if !strings.Contains(m[1], "://") {
				checkLink(t, file, m[1])
			}
		}
	}
	for _, m := range regexp.MustCompile(`runbook_url: (\S+)`).FindAllStringSubmatch(readDocument(t, "build/chart/files/rules.yaml"), -1) {
		checkLink(t, "rules.yaml", m[1]) // the chart puts the source before it
	}
}

// documents lists the documents of the tree, without those that make downloads or builds.
func documents(t *testing.T) (files []string) {
	t.Helper()
	kit.Must(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
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
	}))
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
	text := kit.ReadFile(t, filepath.Join("..", file))
	return example.ReplaceAllString(string(text), "")
}

// anchor is the fragment of a heading, as GitHub makes it.
func anchor(heading string) string {
	heading = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading, "$1")
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-")
}

var update = flag.Bool("update", false, "rewrite the lists of linked packages")

// program is the package whose dependencies are listed.
const program = "./cmd/kube-proxy"

// maxLinked is how many packages outside the standard library a binary may link, our own
// included.
const maxLinked = 600

// TestLinkedPackages makes a new dependency visible in review.
func TestLinkedPackages(t *testing.T) {
	for _, system := range []string{"linux", "windows"} {
		t.Run(system, func(t *testing.T) {
			linked, err := linkedPackages(system)
			kit.Must(t, err)
			file := "deps-" + system + ".txt"
			text := strings.Join(linked, "\n") + "\n"
			if *update {
				kit.Must(t, os.WriteFile(file, []byte(text), 0o644))
			}
			committed := kit.ReadFile(t, file)
			kit.Same(t, fmt.Sprintf("build/%s is not what %s links; if that is meant, run make deps (-committed +linked)", file, program), string(committed), text)
			kit.Check(t, len(linked) <= maxLinked,
				"%s links %d packages on %s, limit %d", program, len(linked), system, maxLinked)
		})
	}
}

// linkedPackages lists the packages outside the standard library that the program links
// on system, sorted.
func linkedPackages(system string) ([]string, error) {
	const outside = "{{if not .Standard}}{{.ImportPath}}{{end}}"
	list := exec.Command("go", "list", "-deps", "-f", outside, program)
	list.Dir = ".."
	list.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0")
	var problems bytes.Buffer
	list.Stderr = &problems
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list what %s links on %s: %w\n%s", program, system, err, &problems)
	}
	linked := strings.Fields(string(out))
	slices.Sort(linked)
	return linked, nil
}

// checkState forbids hidden state and hidden execution: init functions, and package
// variables that are neither error sentinels nor tables.
func checkState(s *source) []finding {
	var found []finding
	for _, decl := range s.tree.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil && d.Name.Name == "init" {
				found = append(found, s.at(d).report("init function: let main call it"))
			}
		case *ast.GenDecl:
			if d.Tok == token.VAR && !s.test() {
				found = append(found, variables(s, d)...)
			}
		}
	}
	return found
}

func variables(s *source, d *ast.GenDecl) []finding {
	var found []finding
	for _, spec := range d.Specs {
		v := spec.(*ast.ValueSpec)
		switch {
		case v.Names[0].Name == "_", embedded(d, v), len(v.Values) > 0 && !slices.ContainsFunc(v.Values, changeable):
		case s.dir() == "cmd/kube-proxy" && v.Names[0].Name == "version": // set by the linker
		default:
			found = append(found, s.at(v).report("package variable %s: only error sentinels and tables", v.Names[0].Name))
		}
	}
	return found
}

// changeable returns whether x creates a value that is meant to change: a map or channel
// by make, a flag, or a pointer to an empty value. A pointer to a filled literal may be a
// row of a table.
func changeable(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.UnaryExpr:
		lit, ok := x.X.(*ast.CompositeLit)
		return x.Op == token.AND && ok && len(lit.Elts) == 0
	case *ast.CallExpr:
		return slices.Contains([]string{"make", "new", "Bool", "Duration", "Int", "String"}, called(x))
	}
	return false
}

// called returns the name of a called function, without its package.
func called(x *ast.CallExpr) string {
	switch f := x.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

func embedded(d *ast.GenDecl, v *ast.ValueSpec) bool {
	for _, doc := range []*ast.CommentGroup{d.Doc, v.Doc} {
		if doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") }) {
			return true
		}
	}
	return false
}

// vague are names without a meaning.
var vague = []string{"util", "utils", "helper", "helpers", "misc", "impl"}

func checkNames(s *source) []finding {
	var found []finding
	words := strings.Split(strings.TrimSuffix(s.name(), ".go"), "_")
	words = append(words, path.Base(s.dir()), s.tree.Name.Name)
	for _, w := range words {
		if slices.Contains(vague, w) {
			found = append(found, s.at(s.tree).report("%q says nothing: name what it does", w))
		}
	}
	for _, decl := range s.tree.Decls {
		for _, id := range declared(decl) {
			if meaningless(id.Name) {
				found = append(found, s.at(id).report("%s: drop Get, Impl, Helper and Util from the name", id.Name))
			}
		}
	}
	return found
}

// meaningless returns whether a name is like GetPort or PortImpl.
func meaningless(name string) bool {
	rest, get := strings.CutPrefix(name, "Get")
	if get && (rest == "" || ast.IsExported(rest)) {
		return true
	}
	return slices.ContainsFunc([]string{"Impl", "Helper", "Helpers", "Util", "Utils"}, func(w string) bool {
		return strings.HasSuffix(name, w)
	})
}

// declared returns the names that a declaration declares.
func declared(decl ast.Decl) []*ast.Ident {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		return []*ast.Ident{d.Name}
	case *ast.GenDecl:
		var ids []*ast.Ident
		for _, spec := range d.Specs {
			ids = append(ids, specified(spec)...)
		}
		return ids
	}
	return nil
}

func specified(spec ast.Spec) []*ast.Ident {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		return []*ast.Ident{s.Name}
	case *ast.ValueSpec:
		return s.Names
	}
	return nil
}

// checkDocs requires a comment on every exported name. One comment may serve a group of
// constants or variables.
func checkDocs(s *source) []finding {
	if s.test() {
		return nil
	}
	var found []finding
	missing := func(id *ast.Ident) { found = append(found, s.at(id).report("%s has no doc comment", id.Name)) }
	for _, decl := range s.tree.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Doc == nil && d.Name.IsExported() && reachable(d) && !isStandardMethod(d) {
				missing(d.Name)
			}
		case *ast.GenDecl:
			for _, id := range undocumented(d) {
				missing(id)
			}
		}
	}
	return found
}

// reachable returns whether d is not a method of an unexported type.
func reachable(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

// isStandardMethod returns whether the language or the library fixes the meaning of a
// method.
func isStandardMethod(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{"Error", "Unwrap", "Len", "Less", "Swap"}, d.Name.Name)
}

func undocumented(d *ast.GenDecl) []*ast.Ident {
	var bare []*ast.Ident
	for _, spec := range d.Specs {
		var own bool
		switch s := spec.(type) {
		case *ast.TypeSpec:
			own = s.Doc != nil || s.Comment != nil
		case *ast.ValueSpec:
			own = s.Doc != nil || s.Comment != nil
		}
		for _, id := range specified(spec) {
			if !own && d.Doc == nil && id.IsExported() {
				bare = append(bare, id)
			}
		}
	}
	return bare
}
