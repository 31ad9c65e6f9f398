// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"strings"
	"testing"
)

func FuzzDecode(f *testing.F) {
	f.Add([]byte(serviceYAML("a", "10.96.0.1") + "---\n" + sliceYAML("s", "10.1.0.1")))
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}]}`))
	f.Add([]byte("apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\nsubsets: [{addresses: [{ip: 10.1.0.1}], ports: [{port: 80}]}]"))
	f.Add([]byte("a: &a [1,1]\nb: &b [*a,*a]\nc: [*b,*b]\n...\n--- !!binary x\n? [k]\n: v"))
	f.Add([]byte("{\"apiVersion\":\"v1\",\n\t\"kind\":\"ServiceList\",\"items\":[null,{}]}{}"))
	f.Fuzz(func(t *testing.T, content []byte) {
		d := &decoder{noted: map[string]bool{}}
		got := d.decode(content)
		for _, o := range got.objects {
			if o.key.name.Name == "" || o.key.kind == "" {
				t.Errorf("object without a key: %v", o.key)
			}
		}
		if n := len(got.rejected); n > maxProblems {
			t.Errorf("%d problems are reported, want at most %d", n, maxProblems)
		}
		for _, b := range got.rejected {
			if !strings.Contains(b.err.Error(), " at line ") {
				t.Errorf("error = %q, want it to say where", b.err)
			}
		}
	})
}

func TestDocuments(t *testing.T) {
	for name, tt := range map[string]struct {
		in    string
		lines []int
	}{
		"empty":                   {"", nil},
		"markers only":            {"---\n---\n...\n", nil},
		"no marker":               {"a: 1\n", []int{1}},
		"blank lines first":       {"\n\na: 1\n---\n\nb: 2", []int{3, 6}},
		"on the marker's line":    {"--- {a: 1}\n--- # b\nb: 2\n", []int{1, 2}},
		"not a marker":            {"a: 1\n----\n ---\n", []int{1}},
		"end marker":              {"a: 1\n...\n---\nb: 2\n", []int{1, 4}},
		"json after json":         {"{}\n\n {\n}{}", []int{1, 3, 4}},
		"json cut off":            {"{}\n{", []int{1}},
		"flow style is yaml, too": {"{a: 1}\n---\n{b: 2}\n", []int{1, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []int
			documents([]byte(tt.in), func(d document) bool {
				all, err := d.jsonObjects()
				if err != nil {
					all = []document{d}
				}
				for _, o := range all {
					lines = append(lines, o.line)
				}
				return true
			})
			if len(lines) != len(tt.lines) {
				t.Fatalf("lines = %v, want %v", lines, tt.lines)
			}
			for i := range lines {
				if lines[i] != tt.lines[i] {
					t.Errorf("lines = %v, want %v", lines, tt.lines)
				}
			}
		})
	}
}
