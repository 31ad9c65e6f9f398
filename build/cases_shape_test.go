// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import "strings"

// body wraps statements into a file with one function f.
func body(statements string) string {
	lines := strings.Split(strings.TrimSpace(statements), "\n")
	return "package p\n\nfunc f() {\n\t" + strings.Join(lines, "\n\t") + "\n}\n"
}

var lengthSamples = map[string]sample{
	"80 lines":           {text: body(strings.Repeat("f()\n", 78))},
	"81 lines":           {text: body(strings.Repeat("f()\n", 79)), want: []string{"f has 81 lines, limit 80"}},
	"method":             {text: "package p\n\nfunc (t t) m() {\n" + strings.Repeat("\tf()\n", 79) + "}\n", want: []string{"m has 81 lines"}},
	"package literal":    {text: "package p\n\nvar v = func() {\n" + strings.Repeat("\tf()\n", 79) + "}\n", want: []string{"function literal has 81"}},
	"test file too":      {path: "p/p_test.go", text: body(strings.Repeat("f()\n", 79)), want: []string{"f has 81 lines"}},
	"comment not in":     {text: strings.Repeat("// f is.\n", 81) + "package p\n"},
	"file of 800 lines":  {text: "package p\n" + strings.Repeat("\n// .\n", 398)},
	"file of 801 lines":  {text: "package p\n" + strings.Repeat("\n// .\n", 398) + "// .\n", want: []string{"file has 801 lines, limit 800"}},
	"file of long tests": {path: "p/p_test.go", text: "package p\n" + strings.Repeat("\n// .\n", 399), want: []string{"file has 802"}},
}

var paramSamples = map[string]sample{
	"five":            {text: "package p\n\nfunc f(a, b, c int, d, e string) {}\n"},
	"six":             {text: "package p\n\nfunc f(a, b, c int, d, e, g string) {}\n", want: []string{"6 parameters, limit 5"}},
	"receiver":        {text: "package p\n\nfunc (t t) f(a, b, c, d, e int) {}\n"},
	"results":         {text: "package p\n\nfunc f() (a, b, c, d, e, g int) { return }\n"},
	"six unnamed":     {text: "package p\n\ntype t interface {\n\tf(int, int, int, int, int, int)\n}\n", want: []string{"6 parameters"}},
	"literal":         {text: body("_ = func(a, b, c, d, e, f int) {}"), want: []string{"6 parameters"}},
	"exported bool":   {text: "package p\n\nfunc F(force bool) {}\n", want: []string{"F has a bool parameter"}},
	"unexported bool": {text: "package p\n\nfunc f(force bool) {}\n"},
	"bool result":     {text: "package p\n\nfunc F() bool { return true }\n"},
	"bool callback":   {text: "package p\n\nfunc F(f func(bool)) {}\n"},
}

var nestingSamples = map[string]sample{
	"three":        {text: body("for {\n\tif a {\n\t\tfor {\n\t\t\tf()\n\t\t}\n\t}\n}")},
	"four":         {text: body("for {\n\tif a {\n\t\tfor {\n\t\t\tif b {\n\t\t\t}\n\t\t}\n\t}\n}"), want: []string{"f nests deeper than 3"}},
	"five is once": {text: body("for {\n\tif a {\n\t\tfor {\n\t\t\tif b {\n\t\t\t\tfor {\n\t\t\t\t}\n\t\t\t}\n\t\t}\n\t}\n}"), want: []string{"f nests"}},
	"else if":      {text: body("if a {\n} else if b {\n} else if c {\n} else if d {\n} else {\n\tf()\n}")},
	"deep in else": {text: body("if a {\n} else if b {\n} else {\n\tfor {\n\t\tfor {\n\t\t\tfor {\n\t\t\t}\n\t\t}\n\t}\n}"), want: []string{"f nests"}},
	"cases":        {text: body("switch a {\ncase b:\n\tfor {\n\t\tif c {\n\t\t}\n\t}\n}")},
	"deep case":    {text: body("switch a {\ncase b:\n\tselect {\n\tcase <-c:\n\t\tfor {\n\t\t\tif d {\n\t\t\t}\n\t\t}\n\t}\n}"), want: []string{"f nests"}},
	"bare block":   {text: body("for {\n\tfor {\n\t\tfor {\n\t\t\t{\n\t\t\t\tf()\n\t\t\t}\n\t\t}\n\t}\n}")},
	"literal":      {text: body("for {\n\tf(func() {\n\t\tif a {\n\t\t\tfor {\n\t\t\t}\n\t\t}\n\t})\n}")},
	"deep literal": {text: body("for {\n\tf(func() {\n\t\tif a {\n\t\t\tfor {\n\t\t\t\tif b {\n\t\t\t\t}\n\t\t\t}\n\t\t}\n\t})\n}"), want: []string{"f nests"}},
	"in a header":  {text: body("if err := f(func() {\n\tfor {\n\t\tfor {\n\t\t\tfor {\n\t\t\t\tfor {\n\t\t\t\t}\n\t\t\t}\n\t\t}\n\t}\n}); err != nil {\n}"), want: []string{"f nests"}},
}

var alwaysSamples = map[string]sample{
	"asks":         {text: body("if a && !b || c == false {\n\tf(true)\n}")},
	"never":        {text: body("if false && a {\n}"), want: []string{"false is always false"}},
	"always":       {text: body("x = a || true"), want: []string{"true is always true"}},
	"in brackets":  {text: body("x = (a && (false))"), want: []string{"false is always false"}},
	"nothing else": {text: body("if true {\n}"), want: []string{"true is always true"}},
	"nor":          {text: body("for !false {\n}"), want: []string{"false is always false"}},
}

var stateSamples = map[string]sample{
	"init":           {text: "package p\n\nfunc init() {}\n", want: []string{"init function"}},
	"init in a test": {path: "p/p_test.go", text: "package p\n\nfunc init() {}\n", want: []string{"init function"}},
	"method init":    {text: "package p\n\nfunc (t t) init() {}\n"},
	"no value":       {text: "package p\n\nvar mu sync.Mutex\n", want: []string{"package variable mu"}},
	"in a group":     {text: "package p\n\nvar (\n\terrA = errors.New(\"a\")\n\tn    int\n)\n", want: []string{"package variable n"}},
	"made map":       {text: "package p\n\nvar m = make(map[string]int)\n", want: []string{"package variable m"}},
	"pointer":        {text: "package p\n\nvar c = &cache{}\n", want: []string{"package variable c"}},
	"row of a table": {text: "package p\n\nvar zero = &row{name: \"zero\"}\n"},
	"flag":           {text: "package p\n\nvar v = flag.Bool(\"v\", false, \"\")\n", want: []string{"package variable v"}},
	"flag of a test": {path: "p/p_test.go", text: "package p\n\nvar update = flag.Bool(\"update\", false, \"\")\n"},
	"sentinel":       {text: "package p\n\nvar ErrGone = errors.New(\"gone\")\n"},
	"table":          {text: "package p\n\nvar names = map[int]string{1: \"one\"}\n"},
	"interface met":  {text: "package p\n\nvar _ fmt.Stringer = (*t)(nil)\n"},
	"pattern":        {text: "package p\n\nvar word = regexp.MustCompile(`a`)\n"},
	"embedded":       {text: "package p\n\n//go:embed page.html\nvar page []byte\n"},
	"linked version": {path: "cmd/kube-proxy/version.go", text: "package main\n\nvar version string\n"},
	"other version":  {path: "config/version.go", text: "package config\n\nvar version string\n", want: []string{"package variable version"}},
	"other in cmd":   {path: "cmd/kube-proxy/version.go", text: "package main\n\nvar commit string\n", want: []string{"package variable commit"}},
	"local variable": {text: body("var n int\n_ = n")},
}
