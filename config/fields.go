// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentbase "k8s.io/component-base/config/v1alpha1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// removedField is a field of an earlier v1alpha1 that old files may contain.
type removedField struct {
	kind reflect.Type // nil for one that nothing ever read
	why  string
}

var removedFields = map[string]removedField{
	"enableContentionProfiling": {reflect.TypeFor[bool](), "is ignored: it is a field that components share, and there is no profile of contention here"},
	"leaderElection":            {reflect.TypeFor[componentbase.LeaderElectionConfiguration](), "is ignored: it is a field that components share, and every node has a proxy of its own"},

	udpIdlePath:              {reflect.TypeFor[metav1.Duration](), udpIdleText},
	"udpTimeoutMilliseconds": {reflect.TypeFor[metav1.Duration](), udpIdleText}, // its name before 1.10
	"metadata":               {nil, "is ignored: kind writes it, and no version has read it"},
	"resourceContainer":      {reflect.TypeFor[string](), "is ignored: the container runtime places the process in its cgroup"},
	"conntrack.max":          {reflect.TypeFor[int32](), "is ignored: set conntrack.maxPerCore and conntrack.min"},
}

func joinPath(parent, key string) string {
	if parent == "" {
		return key
	}
	return parent + "." + key
}

// jsonName returns the name of a field in a file, or "" for an inlined struct.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// fieldOf returns the field of v, a struct, with the given JSON name. Unlike
// encoding/json it is case-sensitive, so that files are portable.
func fieldOf(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous && jsonName(f) == "" {
			if in, ok := fieldOf(v.Field(i), name); ok {
				return in, true
			}
			continue
		}
		if name != "" && jsonName(f) == name {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// fieldAt returns the field of c at a dotted path, which must exist.
func fieldAt(c *v1alpha1.KubeProxyConfiguration, path string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(path, ".") {
		v, _ = fieldOf(v, name)
	}
	return v
}

// paths lists the dotted paths of every field of t, a struct. Sections precede their
// fields.
func paths(t reflect.Type, parent string) []string {
	var all []string
	for i := range t.NumField() {
		f := t.Field(i)
		path := parent
		if name := jsonName(f); name != "" {
			path = joinPath(parent, name)
			all = append(all, path)
		}
		if f.Type.Kind() == reflect.Struct && !reflect.PointerTo(f.Type).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			all = append(all, paths(f.Type, path)...)
		}
	}
	return all
}

// showValue renders a field for an Override in the form of a JSON file.
func showValue(v reflect.Value) string {
	text, err := json.Marshal(v.Interface())
	if err != nil {
		return "?"
	}
	return string(text)
}

// describeType describes the permitted values for a field of type t.
func describeType(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		return "a duration such as 30s or 1h30m"
	case reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		return "a duration such as 5s, or nanoseconds"
	case reflect.TypeFor[Acceleration]():
		return wantAcceleration
	case reflect.TypeFor[resource.QuantityValue]():
		return "a quantity such as 64Ki"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int32:
		return "a whole number that fits into 32 bits"
	case reflect.Uint32:
		return "a whole number, 0 or more"
	case reflect.Float32:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "a mapping"
}
