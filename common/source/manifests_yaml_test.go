// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"sigs.k8s.io/yaml"
)

// plainTexts are YAML as kubectl, people and this project write it.
var plainTexts = map[string]string{
	"Service":      "apiVersion: v1\nkind: Service # one\nmetadata:\n  name: web-1\n  labels:\n    app.kubernetes.io/name: web\n\n  # nothing\nspec:\n  clusterIPs:\n  - 10.96.0.1\n  - fd00:10:96::1\n  ports:\n  - name: http\n    port: 80\n    targetPort: 08h\n  - port: 443\n  publishNotReadyAddresses: true\nstatus:\n  loadBalancer: {}\n",
	"flow":         "metadata: {name: web, labels: {a: 'b c', d: \"e\"}}\nlist: [{a: 1}, [x, z], []]\ndeep:\n- [1, 2]\n- {a: {b: c}}\n",
	"literal":      "data:\n  a: |\n    {\"x\": \"y\\z\"}\n      more\n\n    less\n  b: |-\n    one\nend: true\n",
	"indented":     "items:\n  - a: b\n    c:\n      - d\n  -\n    e: f\n  - /path\n",
	"below":        "a:\n  {b: c}\nd:\n- \n  {e: f}\n",
	"null":         "metadata:\n  creationTimestamp:\nspec:\nlist:\n-\n- a\n",
	"comments":     "# only\n\n  # this\n",
	"beyond ASCII": "# Größe\na:\n  note: für 網路 😀 # für\n  b: \"é\\u00e9\\U0001F600 \\\\ \\n\\t\"\n  c: 'ß: \"'\n  d: 24時\n  e: ñ\nf: [ü, {a: ö}]\ng:\n- ä\nh: |\n  zwölf\n  \"日\"\n",
}

// TestPlainYAML checks that plain YAML is accepted and means the same to the library.
func TestPlainYAML(t *testing.T) {
	for name, text := range plainTexts {
		t.Run(name, func(t *testing.T) {
			if !samePlain(t, []byte(text)) {
				t.Error("is not taken as plain")
			}
		})
	}
}

// samePlain reports whether text is plain, and checks that the library agrees.
func samePlain(t *testing.T, text []byte) bool {
	t.Helper()
	got, err := plainYAML(text, nil, nil)
	if err != nil {
		return false
	}
	want, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatalf("%q: the library says %v, and plainYAML %s", text, err, got)
	}
	if a, b := value(t, got), value(t, want); !reflect.DeepEqual(a, b) {
		t.Fatalf("%q:\n%s, want\n%s", text, got, want)
	}
	return true
}

func value(t *testing.T, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

func FuzzPlainYAML(f *testing.F) {
	for _, text := range plainTexts {
		f.Add([]byte(text))
	}
	for _, odd := range []string{"a: yes\n", "a: 1e3\n", "a: 0x1F\n", "a: 1_000\n", "a: 2026-07-01\n", "a: b\n  c\n", "a: b: c\n", "a: [b,\n c]\n", "a: >\n  b\n", "- a\nb: c\n", "a: b\na: c\n", "a: 1:2\n", "a: &x b\n"} {
		f.Add([]byte(odd))
	}
	f.Fuzz(func(t *testing.T, text []byte) { samePlain(t, text) })
}
