// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// matrix is testdata/values.yaml and teams.yaml.
type matrix struct {
	Accepted []map[string]any
	Refused  []struct {
		Values map[string]any
		Error  string
	}
}

func readMatrix(t *testing.T) (m matrix) {
	t.Helper()
	for _, name := range []string{"values.yaml", "teams.yaml"} {
		var one matrix
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err == nil {
			err = yaml.UnmarshalStrict(text, &one)
		}
		if err != nil {
			t.Fatal(err)
		}
		m.Accepted, m.Refused = append(m.Accepted, one.Accepted...), append(m.Refused, one.Refused...)
	}
	return m
}

// TestValues renders the chart with values that are accepted, and checks that others are
// refused by their name.
func TestValues(t *testing.T) {
	m := readMatrix(t)
	for _, values := range m.Accepted {
		if _, err := source().Manifest(withServer(values)); err != nil {
			t.Errorf("%v: %v", values, err)
		}
	}
	for _, r := range m.Refused {
		if _, err := source().Manifest(withServer(r.Values)); err == nil || !strings.Contains(err.Error(), r.Error) {
			t.Errorf("%v: %v, want an error with %s", r.Values, err, r.Error)
		}
	}
}

// TestMigrated renders the values that kube-proxy config migrate --values prints, and kubeadm's
// config.conf as it is.
func TestMigrated(t *testing.T) {
	folder := filepath.Join("..", "..", "..", "cmd", "kube-proxy", "testdata", "values")
	found, err := filepath.Glob(filepath.Join(folder, "*.values.yaml"))
	if err != nil || len(found) < 8 {
		t.Fatalf("%q, %v", found, err)
	}
	for _, name := range found {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		installed(t, string(text))
	}
	var o struct{ Data map[string]string }
	text, err := os.ReadFile(filepath.Join(folder, "kubeadm.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	given := strings.ReplaceAll("\n"+o.Data["config.conf"], "\n", "\n    ")
	data := at(installed(t, "windows:\n  enabled: true\n  config:"+given+"\nlinux:\n  mode: iptables\n  config:"+given)["ConfigMap kubeproxy"], "data").(map[string]any)
	for _, system := range []string{"linux.yaml", "windows.yaml"} {
		text := data[system].(string)
		for _, want := range []string{"healthzBindAddress: '[::]:10256'\n", "metricsBindAddress: 127.0.0.1:10249\n", "clusterCIDR: 10.244.0.0/16\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: want %s in\n%s", system, want, text)
			}
		}
		if strings.Contains(text, "null") || strings.Contains(text, "kubeconfig") || strings.Contains(text, `""`) {
			t.Errorf("%s has what the chart leaves out:\n%s", system, text)
		}
	}
	if text := data["linux.yaml"].(string); !strings.Contains(text, "mode: iptables\n") || !strings.Contains(text, "localhostNodePorts: false\n") {
		t.Errorf("linux.yaml has not what the chart sets:\n%s", text)
	}
	for asked, none := range map[string]bool{"primary": false, "primary, localhost": true, "127.0.0.1/32": true, "1.127.0.0/16": false} {
		data := at(installed(t, "linux: {mode: iptables, config: {nodePortAddresses: ["+asked+"]}}")["ConfigMap kubeproxy"], "data").(map[string]any)
		if strings.Contains(data["linux.yaml"].(string), "localhostNodePorts") == none {
			t.Errorf("nodePortAddresses %s: no word of localhostNodePorts: want %t in\n%s", asked, none, data["linux.yaml"])
		}
	}
	for _, sections := range []string{"{winkernel: null, ipvs: null, detectLocal: null, clientConnection: null, mode: nftables}", "{conntrack: {}}"} {
		installed(t, "linux: {config: "+sections+"}")
	}
}

// TestEveryValue checks that the matrix has each value of the schema, accepted and refused.
func TestEveryValue(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(source().Folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := yaml.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	m := readMatrix(t)
	fields := fieldsOf(schema, schema)
	if len(fields) < 30 {
		t.Errorf("only %d values: %v", len(fields), fields)
	}
	for _, f := range fields {
		path := strings.Split(f.path, "/")[1:]
		if !f.never && !slices.ContainsFunc(m.Accepted, func(values map[string]any) bool { return has(values, path) }) {
			t.Errorf("no accepted values have %s", f.path)
		}
		if !slices.ContainsFunc(m.Refused, func(r struct {
			Values map[string]any
			Error  string
		}) bool {
			return strings.HasPrefix(r.Error, f.path)
		}) {
			t.Errorf("no values are refused because of %s", f.path)
		}
	}
}

// field is a value that has no fields of its own.
type field struct {
	path  string
	never bool // may not be given
}

// fieldsOf returns the fields of a part of schema. Those of KubeProxyConfiguration are
// compared with the program, by a test of package config.
func fieldsOf(schema map[string]any, part any) []field {
	p, _ := part.(map[string]any)
	ref, _ := p["$ref"].(string)
	if ref == "#/definitions/config" {
		return []field{{}}
	}
	if ref != "" {
		p, _ = at(schema, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...).(map[string]any)
	}
	properties, _ := p["properties"].(map[string]any)
	if len(properties) == 0 {
		return []field{{never: part == false}}
	}
	var all []field
	for name, of := range properties {
		for _, f := range fieldsOf(schema, of) {
			all = append(all, field{"/" + name + f.path, f.never})
		}
	}
	return all
}

func has(values map[string]any, path []string) bool {
	last := len(path) - 1
	parent, _ := at(values, path[:last]...).(map[string]any)
	_, is := parent[path[last]]
	return is
}
