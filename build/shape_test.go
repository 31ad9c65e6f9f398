// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"go/ast"
	"go/token"
)

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
		if fn, ok := n.(*ast.FuncDecl); ok && fn.Name.IsExported() && !s.test() {
			found = append(found, switches(s, fn)...)
		}
		return true
	})
	return found
}

// switches finds bool parameters, whose meaning is not visible in a call.
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
