// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// chartSchema is the schema of the values of the chart.
const chartSchema = "../build/chart/values.schema.json"

// chartSets are the fields that the chart sets itself, from other values or by flags of the
// pod. Its values linux.config and windows.config have all others.
var chartSets = map[string]bool{
	"apiVersion": true, "kind": true, "mode": true, "clientConnection": true, "hostnameOverride": true,
	"windowsRunAsService": true, "socketAcceleration": true,
}

// restricted are fields whose type permits too much.
var restricted = map[string]string{
	"detectLocalMode":        `{"enum": ["", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]}`,
	"iptables.masqueradeBit": `{"type": "integer", "minimum": 0, "maximum": 31}`,
	"nftables.masqueradeBit": `{"type": "integer", "minimum": 0, "maximum": 31}`,
	"oomScoreAdj":            `{"type": "integer", "minimum": 0, "maximum": 1000}`, // less takes CAP_SYS_RESOURCE
}

// TestChartKnowsFields checks that the chart refuses fields of linux.config and
// windows.config that do not exist, or have another type, and accepts all others. Helm
// cannot ask the program, so the schema repeats them.
func TestChartKnowsFields(t *testing.T) {
	text, err := os.ReadFile(chartSchema)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "    \"config\": {\n", "\n    },\n"
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no definition config", chartSchema)
	}
	want := before + begin + definition() + end + after
	if !json.Valid([]byte(want)) {
		t.Fatalf("not JSON:\n%s", want)
	}
	if *update {
		if err := os.WriteFile(chartSchema, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s has other fields than KubeProxyConfiguration; go test ./config -run ChartKnowsFields -update rewrites it", chartSchema)
	}
}

// definition returns what the schema says of a KubeProxyConfiguration, one field in a
// line.
func definition() string {
	lines := fieldSchemas(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	for _, s := range ownSwitches {
		if !chartSets[s.path] {
			lines = append(lines, fmt.Sprintf("%q: {\"type\": \"boolean\"}", s.path))
		}
	}
	return "      \"type\": \"object\",\n      \"additionalProperties\": false,\n      \"properties\": {\n        " +
		strings.Join(lines, ",\n        ") + "\n      }"
}

// fieldSchemas returns the schema of each field of a struct, after its name.
func fieldSchemas(t reflect.Type, parent string) []string {
	var all []string
	for i := range t.NumField() {
		f := t.Field(i)
		name := jsonName(f)
		path := joinPath(parent, name)
		switch {
		case name == "" && f.Anonymous:
			all = append(all, fieldSchemas(f.Type, parent)...)
		case name != "" && name != "-" && !chartSets[path]:
			all = append(all, fmt.Sprintf("%q: %s", name, typeSchema(f.Type, path)))
		}
	}
	return all
}

func typeSchema(t reflect.Type, path string) string {
	if text := restricted[path]; text != "" {
		return text
	}
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		return `{"type": "string", "pattern": "^([0-9.]+(h|m|s|ms|us|ns))+$"}`
	case reflect.TypeFor[logsapi.TimeOrMetaDuration](), reflect.TypeFor[resource.QuantityValue]():
		return `{"type": ["string", "integer"]}`
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeSchema(t.Elem(), path)
	case reflect.String:
		return `{"type": "string"}`
	case reflect.Bool:
		return `{"type": "boolean"}`
	case reflect.Int32:
		return `{"type": "integer", "minimum": 0, "maximum": 2147483647}`
	case reflect.Uint32:
		return `{"type": "integer", "minimum": 0, "maximum": 4294967295}`
	case reflect.Slice:
		return fmt.Sprintf(`{"type": "array", "items": %s}`, typeSchema(t.Elem(), path))
	case reflect.Map:
		return fmt.Sprintf(`{"type": "object", "additionalProperties": %s}`, typeSchema(t.Elem(), path))
	case reflect.Struct:
		return fmt.Sprintf(`{"type": "object", "additionalProperties": false, "properties": {%s}}`, strings.Join(fieldSchemas(t, path), ", "))
	}
	panic("no schema for " + t.String())
}
