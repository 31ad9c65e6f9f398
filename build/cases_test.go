// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"strings"
	"testing"

	"kubeproxy/test/kit"
)

// sample is a file for a rule. want lists the expected findings in order, nothing for a
// file that conforms.
type sample struct {
	path string // common/thing/thing.go if empty
	text string // without the header
	want []string
}

// samples prove each rule on small sources. The tree breaks no rule, so without them a rule
// that finds nothing would pass.
var samples = map[string]map[string]sample{
	"length":    lengthSamples,
	"params":    paramSamples,
	"nesting":   nestingSamples,
	"always":    alwaysSamples,
	"state":     stateSamples,
	"names":     nameSamples,
	"docs":      docSamples,
	"imports":   importSamples,
	"system":    systemSamples,
	"contracts": contractSamples,
}

func TestRules(t *testing.T) {
	for _, r := range rules {
		if r.name == "header" {
			continue // it has no sample without header, see TestHeader
		}
		kit.Check(t, len(samples[r.name]) != 0, "rule %s has no samples", r.name)
		for name, s := range samples[r.name] {
			t.Run(r.name+"/"+name, func(t *testing.T) {
				file, err := parse(orDefault(s.path), []byte(header+s.text))
				kit.Must(t, err)
				compare(t, s.want, r.check(file))
			})
		}
	}
}

func orDefault(path string) string {
	if path == "" {
		return "common/thing/thing.go"
	}
	return path
}

// compare requires that each finding contains the text at its place in want.
func compare(t *testing.T, want []string, found []finding) {
	t.Helper()
	var got []string
	for i, f := range found {
		text := f.text
		if i < len(want) && strings.Contains(text, want[i]) {
			text = want[i]
		}
		got = append(got, text)
	}
	kit.Same(t, "findings (-want +got)", want, got)
}

func TestHeader(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		bad  bool
	}{
		"good":            {text: header + "package p\n"},
		"none":            {text: "package p\n", bad: true},
		"no blank line":   {text: strings.TrimSpace(header) + "\npackage p\n", bad: true},
		"another licence": {text: strings.Replace(header, "Apache-2.0", "MIT", 1) + "package p\n", bad: true},
		"not at the top":  {text: "\n" + header + "package p\n", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := parse("p.go", []byte(c.text))
			kit.Must(t, err)
			kit.Equal(t, len(checkHeader(s)) > 0, c.bad, "at fault")
		})
	}
}

func TestPackageComments(t *testing.T) {
	const doc, plain = header + "// Package p is.\npackage p\n", header + "package p\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"one in two files": {files: map[string]string{"p/a.go": doc, "p/b.go": plain}},
		"none":             {files: map[string]string{"p/a.go": plain}, want: []string{"p: 0 package comments, want 1"}},
		"two":              {files: map[string]string{"p/a.go": doc, "p/a_test.go": doc}, want: []string{"p: 2 package comments, want 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			comments := map[string]int{}
			for path, text := range c.files {
				s, err := parse(path, []byte(text))
				kit.Must(t, err)
				countComment(comments, s)
			}
			kit.Same(t, "misdocumented (-want +got)", c.want, misdocumented(comments))
		})
	}
}

func TestReplacements(t *testing.T) {
	for name, c := range map[string]struct {
		mod  string
		want int
	}{
		"none":      {"module replaceable\n\nrequire a.example/replace v1.0.0\n", 0},
		"one line":  {"module m\n\nreplace a.example/b => ../b\n", 1},
		"block":     {"module m\n\nreplace (\n\ta.example/b => ../b\n)\n", 1},
		"commented": {"module m\n\n// replace a.example/b => ../b\n", 0},
	} {
		t.Run(name, func(t *testing.T) { kit.Equal(t, len(replacements([]byte(c.mod))), c.want, "findings") })
	}
}

func TestUnwantedWords(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"plain":          {text: "The kernel re-validates 10 issues of work/main.\nSee gcr in a glossary.\n"},
		"module proxy":   {text: "GOPROXY=https://proxy.golang." + "org\n", want: []string{"names a registry"}},
		"image registry": {text: "image: gcr." + "io/x\nimage: eu.gcr." + "io/x\nimage: ghcr." + "io/x\n", want: []string{"registry", "registry", "registry"}},
		"issue":          {text: "see iss" + "ue 12\n", want: []string{"names an issue"}},
		"machine's path": {text: "cd /wor" + "k/x\n", want: []string{"one machine"}},
		"note":           {text: "// TO" + "DO: more\n", want: []string{"leaves a note"}},
	} {
		t.Run(name, func(t *testing.T) { compare(t, c.want, checkWords([]byte(c.text))) })
	}
}

var nameSamples = map[string]sample{
	"plain":          {text: "package p\n\nfunc Port() {}\n\nfunc Getter() {}\n\ntype Implement int\n"},
	"get":            {text: "package p\n\nfunc GetPort() {}\n", want: []string{"GetPort: drop"}},
	"get, a method":  {text: "package p\n\nfunc (t t) Get() {}\n", want: []string{"Get: drop"}},
	"impl":           {text: "package p\n\ntype proxyImpl struct{}\n", want: []string{"proxyImpl: drop"}},
	"constant":       {text: "package p\n\nconst sizeUtil = 1\n", want: []string{"sizeUtil: drop"}},
	"file":           {path: "common/thing/string_utils.go", text: "package p\n", want: []string{`"utils" says nothing`}},
	"folder":         {path: "common/helpers/a.go", text: "package p\n", want: []string{`"helpers" says nothing`}},
	"package clause": {text: "package util\n", want: []string{`"util" says nothing`}},
}

var docSamples = map[string]sample{
	"function":         {text: "package p\n\nfunc F() {}\n", want: []string{"F has no doc comment"}},
	"documented":       {text: "package p\n\n// F does.\nfunc F() {}\n"},
	"unexported":       {text: "package p\n\nfunc f() {}\n"},
	"method":           {text: "package p\n\nfunc (t *T) M() {}\n", want: []string{"M has no doc comment"}},
	"generic method":   {text: "package p\n\nfunc (t *T[K]) M() {}\n", want: []string{"M has no"}},
	"generic, hidden":  {text: "package p\n\nfunc (t *t[K]) M() {}\n"},
	"of an unexported": {text: "package p\n\nfunc (t *t) M() {}\n"},
	"error method":     {text: "package p\n\nfunc (e *E) Error() string { return \"\" }\n"},
	"type":             {text: "package p\n\ntype T int\n", want: []string{"T has no"}},
	"group comment":    {text: "package p\n\n// All.\nconst (\n\tA = iota\n\tB\n)\n"},
	"line comment":     {text: "package p\n\nconst (\n\tA = 1 // one\n\tB = 2\n)\n", want: []string{"B has no"}},
	"test file":        {path: "p/p_test.go", text: "package p\n\nfunc TestF() {}\n"},
}

func importing(name string) string { return "package p\n\nimport \"" + name + "\"\n" }

var importSamples = map[string]sample{
	"standard library":      {path: "common/service/a.go", text: importing("net/netip")},
	"service, other module": {path: "common/service/a.go", text: importing("github.com/google/go-cmp/cmp"), want: []string{"common/service may not import"}},
	"service, our own":      {path: "common/service/a.go", text: importing("kubeproxy/common/track"), want: []string{"may not import kubeproxy/common/track"}},
	"service, its tests":    {path: "common/service/a_test.go", text: importing("github.com/google/go-cmp/cmp")},
	"reconcile, API":        {path: "common/reconcile/a.go", text: importing("k8s.io/api/core/v1"), want: []string{"k8s.io/api"}},
	"route, logger":         {path: "common/route/a.go", text: importing("k8s.io/klog/v2"), want: []string{"k8s.io/klog"}},
	"track, API":            {path: "common/track/a.go", text: importing("k8s.io/api/core/v1")},
	"track, clients":        {path: "common/track/a.go", text: importing("k8s.io/client-go/rest"), want: []string{"client-go"}},
	"common, platform":      {path: "common/track/a.go", text: importing("kubeproxy/platform/linux/nftables"), want: []string{"may not import kubeproxy/platform"}},
	"common, config":        {path: "common/track/a.go", text: importing("kubeproxy/config"), want: []string{"kubeproxy/config"}},
	"config, platform":      {path: "config/a.go", text: importing("kubeproxy/platform/windows/hns"), want: []string{"kubeproxy/platform"}},
	"linux, windows":        {path: "platform/linux/ipvs/a_linux.go", text: importing("kubeproxy/platform/windows/hns"), want: []string{"windows/hns"}},
	"windows, linux":        {path: "platform/windows/hns/a.go", text: importing("kubeproxy/platform/linux/ipvs"), want: []string{"linux/ipvs"}},
	"linux, logger":         {path: "platform/linux/ipvs/a.go", text: importing("k8s.io/klog/v2")},
	"linux, API":            {path: "platform/linux/ipvs/a.go", text: importing("k8s.io/api/core/v1"), want: []string{"k8s.io/api"}},
	"windows, API":          {path: "platform/windows/hns/a.go", text: importing("k8s.io/utils/ptr"), want: []string{"k8s.io/utils"}},
	"platform, config":      {path: "platform/windows/hns/a.go", text: importing("kubeproxy/config"), want: []string{"kubeproxy/config"}},
	"a mode, config":        {path: "platform/windows/hns/mode_windows.go", text: importing("kubeproxy/config")},
	"a mode, command":       {path: "platform/windows/hns/mode.go", text: importing("kubeproxy/cmd/kube-proxy"), want: []string{"kubeproxy/cmd"}},
	"a mode, linux":         {path: "platform/windows/hns/mode.go", text: importing("kubeproxy/platform/linux/ipvs"), want: []string{"linux/ipvs"}},
	"mode, config":          {path: "platform/mode/a.go", text: importing("kubeproxy/config")},
	"mode, backend":         {path: "platform/mode/a.go", text: importing("kubeproxy/platform/linux/ipvs"), want: []string{"linux/ipvs"}},
	"modes, both systems":   {path: "platform/modes/a.go", text: importing("kubeproxy/platform/windows/hns")},
	"common, mode":          {path: "common/track/a.go", text: importing("kubeproxy/platform/mode"), want: []string{"kubeproxy/platform"}},
	"whole elements":        {path: "common/reconcile/a.go", text: importing("k8s.io.example/api")},
	"kubernetes":            {path: "cmd/kube-proxy/a.go", text: importing("k8s.io/kubernetes/pkg/proxy"), want: []string{"k8s.io/kubernetes"}},
	"kubernetes in a test":  {path: "test/x/a_test.go", text: importing("k8s.io/kubernetes/pkg/proxy"), want: []string{"k8s.io/kubernetes"}},
	"controller-runtime":    {path: "cmd/kube-proxy/a.go", text: importing("sigs.k8s.io/controller-runtime"), want: []string{"controller-runtime"}},
	"cmd, everything":       {path: "cmd/kube-proxy/a.go", text: importing("kubeproxy/platform/linux/nftables")},
}

var systemSamples = map[string]sample{
	"build line":           {text: "//go:build linux\n\npackage p\n", want: []string{"build line"}},
	"for one processor":    {path: "p/a_arm64.go", text: "package p\n", want: []string{"file name"}},
	"in _linux.go":         {path: "p/a_linux.go", text: "//go:build linux && cgo\n\npackage p\n", want: []string{"build line"}},
	"in _other.go":         {path: "p/a_other.go", text: "//go:build !linux && !windows\n\npackage p\n"},
	"in _other_test.go":    {path: "p/a_other_test.go", text: "//go:build !linux\n\npackage p\n"},
	"runtime.GOOS":         {text: body("if runtime.GOOS == \"linux\" {\n\tf()\n}"), want: []string{"runtime.GOOS"}},
	"runtime.GOOS in cmd":  {path: "cmd/kube-proxy/a.go", text: body("_ = runtime.GOOS")},
	"runtime.GOOS in test": {path: "p/a_test.go", text: body("_ = runtime.GOOS"), want: []string{"runtime.GOOS"}},
	"another GOOS":         {text: body("_ = build.GOOS")},
}

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
