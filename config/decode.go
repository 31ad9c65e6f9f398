// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/printable"
)

// The kind of the file, and the version that Write writes.
const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"
	apiGroup   = "kubeproxy.config.k8s.io/"
)

// File is a configuration file as it was written, without defaults.
type File struct {
	Name   string
	Values v1alpha1.KubeProxyConfiguration
	// Lines maps the path of each key to its line. A key with value null counts as absent
	// and is not included.
	Lines map[string]int
	// UDPIdleTimeout is a removed field, 0 if the file does not set it.
	UDPIdleTimeout time.Duration
	Switches
	// Notes lists the known fields that have no effect any more.
	Notes []Note
	// Warnings are mistakes that kube-proxy tolerates: it ignores unknown fields, and
	// uses the last value of a duplicate field.
	Warnings []*FieldError

	strict error // all faults, in the order of the file
	// hardFail is the file's own setting for the treatment of mistakes.
	hardFail bool
	version2 bool // it is of apiVersion2
}

// Strict returns all faults of the file's form, including Warnings.
func (f *File) Strict() error { return f.strict }

// Parse decodes YAML or JSON. The error joins the faults of the form of data, without
// Warnings. Values are validated later.
func Parse(name string, data []byte) (*File, error) {
	name = printable.Text(name)
	root, err := parseYAML(name, data)
	if err != nil {
		return nil, err
	}
	d := decoder{File: File{Name: name, Lines: map[string]int{}}}
	d.checkType(root)
	if len(d.faults) == 0 {
		d.hardFail = d.version2
		d.structure(root, reflect.ValueOf(&d.Values).Elem(), "")
	}
	if d.version2 {
		d.finishV1alpha2()
	}
	var errs, all []error
	for _, f := range d.faults {
		all = append(all, f.err)
		if e := (*FieldError)(nil); f.lenient && errors.As(f.err, &e) {
			d.Warnings = append(d.Warnings, e)
			continue
		}
		errs = append(errs, f.err)
	}
	d.strict = errors.Join(all...)
	return &d.File, errors.Join(errs...)
}

// parseYAML returns the mapping that must be the only document in data.
func parseYAML(name string, data []byte) (*yaml.Node, error) {
	var doc, more yaml.Node
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: is empty: want apiVersion: %s and kind: %s", name, apiVersion, kind)
	case err != nil:
		return nil, syntaxError(name, err)
	}
	switch err := dec.Decode(&more); {
	case err == nil:
		return nil, fmt.Errorf("%s:%d: a second document begins: want one", name, more.Line)
	case !errors.Is(err, io.EOF):
		return nil, syntaxError(name, err)
	}
	root := resolve(doc.Content[0])
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: is %s: want a mapping with apiVersion: %s and kind: %s", name, root.Line, describe(root), apiVersion, kind)
	}
	return root, nil
}

// syntaxError converts "yaml: line 3: text" to "name:3: text".
func syntaxError(name string, err error) error {
	if m := regexp.MustCompile(`^yaml: line (\d+): (?s)(.*)$`).FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("%s:%s: not YAML: %s", name, m[1], printable.Text(m[2]))
	}
	return fmt.Errorf("%s: not YAML: %s", name, printable.Text(strings.TrimPrefix(err.Error(), "yaml: ")))
}

type decoder struct {
	File
	faults []fault
	// ipvsBit says that iptables.masqueradeBit is of section ipvs, and
	// iptablesBit is what it was before.
	ipvsBit     bool
	iptablesBit *int32
}

// fault is an error. If it is lenient, it is a warning by default.
type fault struct {
	err     error
	lenient bool
}

func (d *decoder) errorf(n *yaml.Node, path, format string, args ...any) {
	d.faults = append(d.faults, fault{d.errorAt(n, path, fmt.Sprintf(format, args...)), false})
}

func (d *decoder) warnf(n *yaml.Node, path, format string, args ...any) {
	d.faults = append(d.faults, fault{d.errorAt(n, path, fmt.Sprintf(format, args...)), true})
}

func (d *decoder) errorAt(n *yaml.Node, path, text string) *FieldError {
	return &FieldError{Origin: d.Name + ":" + strconv.Itoa(n.Line), Path: path, Text: text}
}

func (d *decoder) notef(n *yaml.Node, path, format string, args ...any) {
	d.Notes = append(d.Notes, Note{fmt.Sprintf("%s:%d", d.Name, n.Line), path, fmt.Sprintf(format, args...)})
}

// checkType checks apiVersion and kind first, because in a file of another kind every
// field would be unknown.
func (d *decoder) checkType(root *yaml.Node) {
	for _, want := range [][2]string{{"apiVersion", apiVersion}, {"kind", kind}} {
		var got *yaml.Node
		for i := 0; i < len(root.Content); i += 2 {
			if root.Content[i].Value == want[0] {
				got = resolve(root.Content[i+1])
			}
		}
		switch {
		case got == nil:
			d.errorf(root, want[0], "is missing: want %s", want[1])
		case got.Value == apiVersion2 && want[1] == apiVersion:
			d.version2 = true
		case got.Value != want[1] && strings.HasPrefix(got.Value, apiGroup):
			d.errorf(got, want[0], "is %s, which is not known here: want %s, or %s as far as it is settled", describe(got), apiVersion, apiVersion2)
		case got.Value != want[1]:
			d.errorf(got, want[0], "is %s: want %s", describe(got), want[1])
		}
	}
}

// structure decodes a mapping into v, a struct.
func (d *decoder) structure(n *yaml.Node, v reflect.Value, parent string) {
	seen := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		key, val := n.Content[i], resolve(n.Content[i+1])
		path := joinPath(parent, key.Value)
		field, known := fieldOf(v, key.Value)
		old, removed := removedFields[path]
		switch first, twice := seen[key.Value]; {
		case key.Tag == "!!merge":
			d.errorf(key, parent, "merge keys (<<) are not accepted: write the fields out")
		case switchOf(path) != nil:
			if twice {
				d.reportDuplicate(key, path, first)
			}
			d.value(val, reflect.ValueOf(switchOf(path).of(&d.Switches)).Elem(), path)
		case d.version2 && !twice && d.newField(key, val, path):
		case d.version2 && replacement(path) != "":
			d.warnf(key, path, "is no field of v1alpha2: %s", replacement(path))
		case removed:
			d.decodeRemoved(key, val, path, old)
		case !known:
			d.warnf(key, path, "unknown field%s", didYouMean(d.closest(path)))
		default:
			if twice {
				d.reportDuplicate(key, path, first)
				field.SetZero()
			}
			d.value(val, field, path)
		}
		if path == "iptables.masqueradeBit" {
			d.iptablesBit = d.Values.IPTables.MasqueradeBit
		}
		seen[key.Value] = key.Line
	}
}

// decodeRemoved decodes a field that has no effect any more.
func (d *decoder) decodeRemoved(key, val *yaml.Node, path string, old removedField) {
	was := reflect.New(old.kind).Elem()
	d.value(val, was, path)
	if idle, ok := was.Interface().(metav1.Duration); ok && path == udpIdlePath {
		d.UDPIdleTimeout = idle.Duration
	}
	d.notef(key, path, "%s", old.why)
}

// reportDuplicate warns about a duplicate field, and removes the lines of its first
// value.
func (d *decoder) reportDuplicate(key *yaml.Node, path string, first int) {
	d.warnf(key, path, "is set twice, first in line %d", first)
	maps.DeleteFunc(d.Lines, func(p string, _ int) bool {
		return p == path || strings.HasPrefix(p, path+".") || strings.HasPrefix(p, path+"[")
	})
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, path string) {
	if n.ShortTag() == "!!null" {
		return
	}
	d.Lines[path] = n.Line
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	_, custom := v.Addr().Interface().(json.Unmarshaler)
	switch k := v.Kind(); {
	case !custom && k == reflect.Struct && n.Kind == yaml.MappingNode:
		d.structure(n, v, path)
	case !custom && k == reflect.Slice && n.Kind == yaml.SequenceNode:
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			d.value(resolve(item), v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case !custom && k == reflect.Map && n.Kind == yaml.MappingNode:
		d.mapping(n, v, path)
	case n.Kind != yaml.ScalarNode || !setScalar(n, v):
		d.errorf(n, path, "is %s: want %s", describe(n), describeType(v.Type()))
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	for i := 0; i < len(n.Content); i += 2 {
		key := reflect.ValueOf(n.Content[i].Value)
		at := fmt.Sprintf("%s[%s]", path, key)
		if v.MapIndex(key).IsValid() {
			d.warnf(n.Content[i], at, "is set twice")
		}
		elem := reflect.New(v.Type().Elem()).Elem()
		d.value(resolve(n.Content[i+1]), elem, at)
		v.SetMapIndex(key, elem)
	}
}

// setScalar sets v from n. It returns false if n does not have the form of v's type.
func setScalar(n *yaml.Node, v reflect.Value) bool {
	if u, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		text, _ := json.Marshal(n.Value)
		if tag := n.ShortTag(); tag == "!!int" {
			text = []byte(n.Value)
		}
		return json.Valid(text) && u.UnmarshalJSON(text) == nil
	}
	tag := n.ShortTag()
	switch v.Kind() {
	case reflect.String: // 10 is as valid a name as "10"
		v.SetString(n.Value)
		return true
	case reflect.Bool:
		return n.Decode(v.Addr().Interface()) == nil
	case reflect.Int32, reflect.Uint32:
		return tag == "!!int" && n.Decode(v.Addr().Interface()) == nil
	case reflect.Float32:
		var f float32
		if !slices.Contains([]string{"!!int", "!!float"}, tag) || n.Decode(&f) != nil {
			return false
		}
		v.SetFloat(float64(f))
		return !math.IsNaN(float64(f)) && !math.IsInf(float64(f), 0)
	}
	return false
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// describe describes a value of the file briefly, for an error.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%.80q", n.Value)
}
