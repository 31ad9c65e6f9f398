// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// chartSchema is the schema of the values of the chart.
const chartSchema = "../build/chart/values.schema.json"

// chartSets are the fields that linux.config and windows.config do not have.
var chartSets = map[string]bool{"windowsRunAsService": true, "socketAcceleration": true}

// restricted are fields whose type permits too much. What the schema refuses, the program
// refuses, too: here a person reads it at once, and there in the log of a pod. The program
// refuses more, such as a range of ports that ends before it begins.
var restricted = map[string]string{
	"apiVersion":                      `{"enum": ["` + apiVersion + `"]}`,
	"kind":                            `{"enum": ["` + kind + `"]}`,
	"mode":                            `{"enum": ["", "nftables", "iptables", "ipvs", "userspace", "kernelspace"]}`,
	"hostnameOverride":                `{"enum": [""]}`, // a flag of the pod has the name of its Node
	"bindAddress":                     ipAddress,
	"clusterCIDR":                     matching(`^( *` + prefix + `( *, *` + prefix + `)?)? *$`),
	"detectLocal.bridgeInterface":     interfaceName,
	"detectLocal.interfaceNamePrefix": interfaceName,
	"detectLocalMode":                 `{"enum": ["", "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]}`,
	"healthzBindAddress":              ipPort,
	"iptables.masqueradeBit":          `{"type": "integer", "minimum": 0, "maximum": 31}`,
	"ipvs.excludeCIDRs":               `{"type": "array", "items": ` + matching(`^`+prefix+`$`) + `}`,
	"logging.format":                  `{"enum": ["", "text", "json"]}`,
	"logging.vmodule.filePattern":     matching(`^[^=,]+$`),
	"metricsBindAddress":              ipPort,
	"nftables.masqueradeBit":          `{"type": "integer", "minimum": 0, "maximum": 31}`,
	"nodePortAddresses":               `{"type": "array", "uniqueItems": true, "items": ` + matching(`^(primary|all|localhost|`+prefix+`)$`) + `}`,
	"oomScoreAdj":                     `{"type": "integer", "minimum": -1000, "maximum": 1000}`,
	"portRange":                       matching(`^( *[0-9]+ *([-+] *[0-9]+ *)?)?$`),
	"selection":                       `{"enum": ["random", "consistent", "consistent-all"]}`,
	"selectionSlots":                  fmt.Sprintf(`{"type": "integer", "minimum": %d, "maximum": %d}`, service.MinSlots, service.MaxSlots),
	"silentEndpoints":                 `{"enum": ["on", "observe", "off", true, false]}`, // Helm reads on as true
	"showHiddenMetricsForVersion":     matching(`^([0-9]+[.][0-9]+)?$`),
	"winkernel.sourceVip":             ipAddress,
}

// The forms of ranges and times. Templates of the chart look at the numbers in addresses,
// ranges and ports: they say what is wrong, and the error of a schema is its pattern.
const (
	prefix   = `[0-9A-Fa-f.:]+/[0-9]{1,3}`
	duration = `[+]?(0|(([0-9]+([.][0-9]*)?|[.][0-9]+)(h|m|s|ms|[uµμ]s|ns))+)`
)

var (
	ipAddress     = matching(`^([0-9A-Fa-f.:]+(%.+)?)?$`)
	ipPort        = matching(`^([0-9.]+(:[0-9]+)?|([0-9A-Fa-f.]*:){2,}[0-9A-Fa-f.]*(%.+)?|[[][0-9A-Fa-f.:]+(%.+)?[]](:[0-9]+)?)?$`)
	interfaceName = `{"type": "string", "maxLength": 15, "pattern": "^[^/: ]*$"}`
)

// matching is the schema of a text.
func matching(pattern string) string {
	return fmt.Sprintf(`{"type": "string", "pattern": %q}`, pattern)
}

// TestChartKnowsFields checks that the chart refuses fields of linux.config and
// windows.config that do not exist, or have another type, and accepts all others. Helm
// cannot ask the program, so the schema repeats them.
func TestChartKnowsFields(t *testing.T) {
	text := kit.ReadFile(t, chartSchema)
	const begin, end = "    \"config\": {\n", "\n    },\n"
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	kit.Need(t, ok && ended, "%s has no definition config", chartSchema)
	want := before + begin + definition() + end + after
	kit.Need(t, json.Valid([]byte(want)), "not JSON:\n%s", want)
	if *update {
		kit.Must(t, os.WriteFile(chartSchema, []byte(want), 0o644))
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
			lines = append(lines, fmt.Sprintf("%q: %s", s.path, cmp.Or(restricted[s.path], `{"type": "boolean"}`)))
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
			all = append(all, fmt.Sprintf("%q: %s", name, orNull(typeSchema(f.Type, path))))
		}
	}
	return all
}

// orNull admits null, too, which kubeadm writes for what it leaves to the default.
func orNull(schema string) string {
	schema = regexp.MustCompile(`^{"type": ("[a-z]+")`).ReplaceAllString(schema, `{"type": [$1]`)
	schema = regexp.MustCompile(`^{"type": \[`).ReplaceAllString(schema, `{"type": ["null", `)
	return regexp.MustCompile(`^{"enum": \[`).ReplaceAllString(schema, `{"enum": [null, `)
}

func typeSchema(t reflect.Type, path string) string {
	if text := restricted[path]; text != "" {
		return text
	}
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		return matching(`^` + duration + `$`)
	case reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		return fmt.Sprintf(`{"type": ["string", "integer"], "minimum": 0, "pattern": %q}`, `^`+duration+`$`)
	case reflect.TypeFor[resource.QuantityValue]():
		return `{"type": ["string", "integer"], "pattern": "^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"}`
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
	case reflect.Float32:
		return `{"type": "number"}`
	case reflect.Slice:
		return fmt.Sprintf(`{"type": "array", "items": %s}`, typeSchema(t.Elem(), path))
	case reflect.Map:
		return fmt.Sprintf(`{"type": "object", "additionalProperties": %s}`, typeSchema(t.Elem(), path))
	case reflect.Struct:
		return fmt.Sprintf(`{"type": "object", "additionalProperties": false, "properties": {%s}}`, strings.Join(fieldSchemas(t, path), ", "))
	}
	panic("no schema for " + t.String())
}

// TestChartRefusesWhatTheProgramRefuses compares the patterns of the schema with the
// program.
func TestChartRefusesWhatTheProgramRefuses(t *testing.T) {
	for field, values := range map[string]struct {
		good, bad []string
		form      string // of the file; empty for a plain field
	}{
		"bindAddress":                 {good: []string{"", "0.0.0.0", "::", "fe80::1%eth0"}, bad: []string{"node-a", "10.0.0.1/8"}},
		"clusterCIDR":                 {good: []string{"", "10.0.0.0/8", "fd00::/48, 10.0.0.0/8"}, bad: []string{"10.0.0.0", "10.0.0.0/8;fd00::/48"}},
		"detectLocal.bridgeInterface": {good: []string{"", "cni0", "a.b-c@d"}, bad: []string{"a/b", "a b", "sixteen-letters-"}},
		"iptables.syncPeriod": {
			good: []string{"30s", "1m30s", "1.5h", "+.5m", "1.s", "90000ms"}, bad: []string{"", "often", "1.2.3s", "30", "-1s", "1s.", "1 s"},
			form: "iptables: {minSyncPeriod: 0s, syncPeriod: %q}",
		},
		"ipvs.excludeCIDRs": {
			good: []string{"10.0.0.0/8", "fd00::/48", "::/0", "64:ff9b::10.0.0.0/104"},
			bad:  []string{"", "10.0.0.1", "10.0.0.0/8,fd00::/48", "intern/8"},
			form: "ipvs: {excludeCIDRs: [%q]}",
		},
		"logging.flushFrequency":              {good: []string{"5s", "0"}, bad: []string{"often", "5", "-5s"}},
		"logging.format":                      {good: []string{"", "json"}, bad: []string{"xml"}},
		"logging.options.json.infoBufferSize": {good: []string{"0", "64Ki", "1.5M", "1e3"}, bad: []string{"", "many", "64KB"}},
		"logging.vmodule.filePattern": {
			good: []string{"round", "nft*", "a b"}, bad: []string{"", "round=3", "round,plan"},
			form: "logging: {vmodule: [{filePattern: %q, verbosity: 4}]}",
		},
		"metricsBindAddress": {good: []string{"", "127.0.0.1", "::1", "127.0.0.1:0", "[::1]", "[fe80::1%eth0]:1"}, bad: []string{"localhost:10249", ":10249"}},
		"nodePortAddresses": {
			good: []string{"primary", "10.0.0.0/8", "fd00::/48"},
			bad:  []string{"", "secondary", "10.0.0.1", "primary,10.0.0.0/8", "1:2/64000"},
			form: "nodePortAddresses: [%q]",
		},
		"portRange":                   {good: []string{"", "0", "80", "1 - 2", "30000+2767", "00080-65535"}, bad: []string{"1-", "-5", "1:2", "a-b"}},
		"selection":                   {good: []string{"random", "consistent", "consistent-all"}, bad: []string{"", "maglev"}},
		"silentEndpoints":             {good: []string{"on", "observe", "off"}, bad: []string{"", "ignore"}},
		"showHiddenMetricsForVersion": {good: []string{"", "1.36"}, bad: []string{"next", "1", "1.36.3"}},
		"winkernel.sourceVip":         {good: []string{"", "10.0.0.9", "fd00::9"}, bad: []string{"host", "10.0.0.9/32"}},
	} {
		accepts := acceptance(t, field)
		for _, value := range append(slices.Clone(values.good), values.bad...) {
			want := slices.Contains(values.good, value)
			_, err := load(t, Linux, fmt.Sprintf(cmp.Or(values.form, plain(field)), value))
			kit.Check(t, (err == nil) == want, "%s %q: the program says %v, want accepted %v", field, value, err, want)
			kit.Equal(t, accepts(value), want, "%s %q: the chart accepts it", field, value)
		}
	}
}

// plain is the form of a file with one field.
func plain(field string) string {
	parts := strings.Split(field, ".")
	return strings.Join(parts, ": {") + ": %q" + strings.Repeat("}", len(parts)-1)
}

// rule is a part of the schema.
type rule struct {
	Enum       []any
	Pattern    string
	MaxLength  int
	Items      *rule
	Properties map[string]*rule
}

// acceptance returns what the schema of a field accepts: a text, a text of a list, or a key.
func acceptance(t *testing.T, field string) func(string) bool {
	t.Helper()
	r := &rule{}
	kit.Must(t, json.Unmarshal([]byte("{"+definition()+"}"), r))
	for name := range strings.SplitSeq(field, ".") {
		r = r.Properties[name]
		kit.Need(t, r != nil, "the schema has no field %s", field)
		if r.Items != nil {
			r = r.Items
		}
	}
	if r.Properties != nil {
		return func(key string) bool { return r.Properties[key] != nil }
	}
	pattern := regexp.MustCompile(r.Pattern)
	return func(text string) bool {
		return (r.Enum == nil || slices.Contains(r.Enum, any(text))) && pattern.MatchString(text) && (r.MaxLength == 0 || len(text) <= r.MaxLength)
	}
}
