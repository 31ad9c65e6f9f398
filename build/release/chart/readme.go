// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// readmeHead is what the README of the chart has before its values.
const readmeHead = `# kubeproxy

A service proxy for Kubernetes nodes on Linux and Windows, in place of kube-proxy.

    helm install kubeproxy CHART -n kube-system --set clusterCIDR=10.244.0.0/16

The chart finds the address of the API server in clusters that kubeadm made. Elsewhere it fails until ` + "`apiServer`" + ` is
set. The documents of the release say how to put kube-proxy aside, and how to go back: docs/install.md and
docs/distributions.md.

Generated from values.yaml and values.schema.json by make manifests.

## Values

The chart refuses other names, and values of another form.

| value | form | default | is |
|---|---|---|---|
`

// schema is a part of values.schema.json.
type schema struct {
	Ref         string            `json:"$ref"`
	Type        any               `json:"type"` // a name, or a list of them
	Enum        []any             `json:"enum"`
	Const       *any              `json:"const"`
	AnyOf       []schema          `json:"anyOf"`
	Description string            `json:"description"`
	Properties  map[string]schema `json:"properties"`
	Definitions map[string]schema `json:"definitions"`
}

// Readme returns the README of the chart, with a row for each value.
func (s *Source) Readme() (string, error) {
	var root schema
	text, err := os.ReadFile(filepath.Join(s.Folder, "values.schema.json"))
	if err == nil {
		err = json.Unmarshal(text, &root)
	}
	if err != nil {
		return "", err
	}
	values, err := yaml.ReadFile(filepath.Join(s.Folder, "values.yaml"))
	if err != nil {
		return "", err
	}
	r := &reference{definitions: root.Definitions}
	r.out.WriteString(readmeHead)
	r.add("", values.YNode(), root)
	return r.out.String(), nil
}

// reference writes the rows of values.
type reference struct {
	definitions map[string]schema
	out         strings.Builder
}

// add writes the rows of a mapping. One that spreads over lines has its values in rows of
// their own.
func (r *reference) add(prefix string, mapping *yaml.Node, of schema) {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name, is := prefix+key.Value, r.resolve(of.Properties[key.Value])
		about := comment(key.HeadComment)
		if value.Kind != yaml.MappingNode || value.Style == yaml.FlowStyle {
			r.row("`"+name+"`", r.form(is), "`"+inline(value)+"`", cmp.Or(about, is.Description))
			continue
		}
		if about != "" {
			r.row("`"+name+"`", "", "", about)
		}
		r.add(name+".", value, is)
	}
}

func (r *reference) row(cells ...string) {
	for _, c := range cells {
		r.out.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
	}
	r.out.WriteString("|\n")
}

// resolve follows a reference to a definition.
func (r *reference) resolve(s schema) schema {
	if name, ok := strings.CutPrefix(s.Ref, "#/definitions/"); ok {
		return r.definitions[name]
	}
	return s
}

// form says which values a schema takes.
func (r *reference) form(s schema) string {
	var all []string
	for _, x := range s.Enum {
		all = append(all, quoted(x))
	}
	for _, one := range s.AnyOf {
		all = append(all, r.form(r.resolve(one)))
	}
	switch t := s.Type.(type) {
	case string:
		all = append(all, t)
	case []any:
		for _, x := range t {
			all = append(all, fmt.Sprint(x))
		}
	}
	if s.Const != nil {
		all = append(all, quoted(*s.Const))
	}
	return strings.Join(unique(all), ", ")
}

func unique(all []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(s string) bool {
		had := seen[s]
		seen[s] = true
		return had || s == ""
	})
}

func quoted(x any) string {
	text, err := json.Marshal(x)
	if err != nil {
		return fmt.Sprint(x)
	}
	return "`" + string(text) + "`"
}

// inline writes a value in one line.
func inline(n *yaml.Node) string {
	var value any
	if err := n.Decode(&value); err != nil {
		return n.Value
	}
	text, err := json.Marshal(value)
	if err != nil {
		return n.Value
	}
	return string(text)
}

// comment joins the lines of a comment.
func comment(text string) string {
	var words []string
	for line := range strings.Lines(text) {
		words = append(words, strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))...)
	}
	return strings.Join(words, " ")
}
