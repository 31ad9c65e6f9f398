// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"go/ast"
	"go/token"
	"strings"
)

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
