// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
)

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
	missing := func(id *ast.Ident) {
		found = append(found, s.at(id).report("%s has no doc comment", id.Name))
	}
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
