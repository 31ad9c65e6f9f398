// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
		if len(samples[r.name]) == 0 {
			t.Errorf("rule %s has no samples", r.name)
		}
		for name, s := range samples[r.name] {
			t.Run(r.name+"/"+name, func(t *testing.T) {
				file, err := parse(orDefault(s.path), []byte(header+s.text))
				if err != nil {
					t.Fatal(err)
				}
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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
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
			if err != nil {
				t.Fatal(err)
			}
			if bad := len(checkHeader(s)) > 0; bad != c.bad {
				t.Errorf("at fault = %v, want %v", bad, c.bad)
			}
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
				if err != nil {
					t.Fatal(err)
				}
				countComment(comments, s)
			}
			if diff := cmp.Diff(c.want, misdocumented(comments)); diff != "" {
				t.Errorf("misdocumented (-want +got):\n%s", diff)
			}
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
		t.Run(name, func(t *testing.T) {
			if got := len(replacements([]byte(c.mod))); got != c.want {
				t.Errorf("findings = %d, want %d", got, c.want)
			}
		})
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
