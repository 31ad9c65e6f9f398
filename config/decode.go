// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentbase "k8s.io/component-base/config/v1alpha1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/printable"
	"kubeproxy/common/suggest"
)

// The kind of the file, and the version that Write writes.
const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"
	apiGroup   = "kubeproxy.config.k8s.io/"
	// oldAPIVersion is that of the files of kube-proxy 1.7 and 1.8.
	oldAPIVersion = "componentconfig/v1alpha1"
)

// File is a configuration file as it was written, without defaults.
type File struct {
	Name   string
	Values v1alpha1.KubeProxyConfiguration
	// Lines maps the path of each key to its line. A key with null counts as absent.
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
	doc    *yaml.Node
	// unused are the keys in doc that have no effect, for Migrate.
	unused map[*yaml.Node]Note
}

// Strict returns all faults of the file's form, including Warnings.
func (f *File) Strict() error { return f.strict }

// Parse decodes YAML or JSON. The error joins faults of form but Warnings; values come later.
func Parse(name string, data []byte) (*File, error) {
	name = printable.Text(name)
	doc, others, err := parseYAML(name, data)
	if err != nil {
		return nil, err
	}
	root := doc.Content[0]
	d := decoder{File: File{Name: name, Lines: map[string]int{}, doc: doc, unused: map[*yaml.Node]Note{}}}
	d.checkType(root)
	if len(d.faults) == 0 {
		d.structure(root, reflect.ValueOf(&d.Values).Elem(), "")
		d.checkOthers(others)
	} else if found, err := Find(name, data); err == nil && found[0].Where != "" {
		return nil, fmt.Errorf("%s: has a %s for others to read, %s: kube-proxy config migrate prints it alone", name, kind, found[0].Where)
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

// parseYAML returns the first document, which must be a mapping, without aliases, and the others.
func parseYAML(name string, data []byte) (*yaml.Node, []document, error) {
	all := documents(plainText(data))
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("%s: is empty: want apiVersion: %s and kind: %s", name, apiVersion, kind)
	}
	doc, err := all[0].parse(name)
	if err != nil {
		return nil, nil, err
	}
	if doc, err = (&expander{name, maxExpanded}).expand(doc); err != nil {
		return nil, nil, err
	}
	if root := doc.Content[0]; root.Kind != yaml.MappingNode {
		return nil, nil, fmt.Errorf("%s:%d: is %s: want a mapping with apiVersion: %s and kind: %s", name, root.Line, describe(root), apiVersion, kind)
	}
	return doc, all[1:], nil
}

// checkOthers warns of further documents, which kube-proxy does not read. A second
// configuration is a mistake as a second value of a field is.
func (d *decoder) checkOthers(others []document) {
	var kinds []string
	for _, o := range others {
		root, _ := o.value("")
		if isOurs(root) {
			d.warnf(&yaml.Node{Line: o.line}, "", "a second %s begins: the first one counts", kind)
			return
		}
		kinds = append(kinds, describeKind(root))
	}
	if slices.Sort(kinds); len(kinds) > 0 {
		text := fmt.Sprintf("further documents are ignored: %s", strings.Join(first10(slices.Compact(kinds)), ", "))
		d.Warnings = append(d.Warnings, d.errorAt(&yaml.Node{Line: others[0].line}, "", text))
	}
}

// syntaxError converts "yaml: line 3: text" to "name:3: text", for text after some lines.
func syntaxError(name string, after int, err error) error {
	if m := regexp.MustCompile(`^yaml: line (\d+): (?s)(.*)$`).FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		return fmt.Errorf("%s:%d: not YAML: %s", name, line+after, printable.Text(m[2]))
	}
	return fmt.Errorf("%s: not YAML: %s", name, printable.Text(strings.TrimPrefix(err.Error(), "yaml: ")))
}

type decoder struct {
	File
	faults []fault
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

// checkType checks apiVersion and kind first: in another kind every field would be unknown.
func (d *decoder) checkType(root *yaml.Node) {
	for _, want := range [][2]string{{"apiVersion", apiVersion}, {"kind", kind}} {
		got := field(root, want[0])
		switch {
		case got == nil:
			d.errorf(root, want[0], "is missing: want %s", want[1])
		case got.Value == oldAPIVersion && want[1] == apiVersion:
			d.notef(got, want[0], "is that of kube-proxy 1.7 and 1.8: it is read as %s", apiVersion)
		case got.Value != want[1] && strings.HasPrefix(got.Value, apiGroup):
			d.errorf(got, want[0], "is %s, which is not known here: want %s", describe(got), apiVersion)
		case got.Value != want[1]:
			d.errorf(got, want[0], "is %s: want %s", describe(got), want[1])
		}
	}
}

// structure decodes a mapping into v, a struct.
func (d *decoder) structure(n *yaml.Node, v reflect.Value, parent string) {
	seen := map[string]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		path := joinPath(parent, key.Value)
		if path == "ipvs.ExcludeCIDRs" { // in files of kube-proxy 1.9 to 1.11
			key.Value, path = "excludeCIDRs", "ipvs.excludeCIDRs"
			d.notef(key, path, "is written as in kube-proxy 1.11 and older, ExcludeCIDRs")
		}
		into, known := fieldOf(v, key.Value)
		old, removed := removedFields[path]
		first, twice := seen[key.Value]
		switch {
		case switchOf(path) != nil:
			into, known = reflect.ValueOf(switchOf(path).of(&d.Switches)).Elem(), true
		case removed:
			d.decodeRemoved(key, val, path, old)
		case !known:
			d.warnf(key, path, "unknown field%s", didYouMean(closestPath(path)))
			d.leaveOut(key, path, "unknown field")
		}
		if known {
			if twice {
				d.reportDuplicate(key, path, first)
				into.SetZero()
			}
			d.value(val, into, path)
		}
		seen[key.Value] = key
	}
}

// leaveOut makes Migrate leave out a key.
func (d *decoder) leaveOut(key *yaml.Node, path, text string) {
	d.unused[key] = Note{fmt.Sprintf("%s:%d", d.Name, key.Line), path, text}
}

// decodeRemoved decodes a field that has no effect any more.
func (d *decoder) decodeRemoved(key, val *yaml.Node, path string, old removedField) {
	if old.kind != nil {
		was := reflect.New(old.kind).Elem()
		d.value(val, was, path)
		if idle, ok := was.Interface().(metav1.Duration); ok {
			if d.UDPIdleTimeout = idle.Duration; idle.Duration != 0 { // 0 stands for the default
				d.Lines[udpIdlePath] = val.Line
			} else {
				delete(d.Lines, udpIdlePath)
			}
		}
	}
	d.notef(key, path, "%s", old.why)
	d.leaveOut(key, path, old.why)
}

// reportDuplicate warns about a duplicate field, and drops the lines of its first value.
func (d *decoder) reportDuplicate(key *yaml.Node, path string, first *yaml.Node) {
	text := fmt.Sprintf("is set twice, first in line %d", first.Line)
	d.warnf(key, path, "%s", text)
	d.leaveOut(first, path, fmt.Sprintf("is set again in line %d, which counts", key.Line))
	maps.DeleteFunc(d.Lines, func(p string, _ int) bool {
		return p == path || strings.HasPrefix(p, path+".") || strings.HasPrefix(p, path+"[")
	})
}

// Values of these types read their text themselves.
var (
	_ json.Unmarshaler = (*metav1.Duration)(nil)
	_ json.Unmarshaler = (*resource.QuantityValue)(nil)
	_ json.Unmarshaler = (*logsapi.TimeOrMetaDuration)(nil)
	_ json.Unmarshaler = (*Acceleration)(nil)
	_ json.Unmarshaler = (*SelectionSlots)(nil)
)

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
	case path == "featureGates" && n.Kind == yaml.ScalarNode:
		d.gatesText(n, path)
	case !custom && k == reflect.Struct && n.Kind == yaml.MappingNode:
		d.structure(n, v, path)
	case !custom && k == reflect.Slice && n.Kind == yaml.SequenceNode:
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case !custom && k == reflect.Map && n.Kind == yaml.MappingNode:
		d.mapping(n, v, path)
	case n.Kind != yaml.ScalarNode || !setScalar(n, v):
		d.errorf(n, path, "is %s: want %s", describe(n), describeType(v.Type()))
	}
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, path string) {
	v.Set(reflect.MakeMap(v.Type()))
	seen := map[string]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i]
		at := fmt.Sprintf("%s[%s]", path, key.Value)
		if first, twice := seen[key.Value]; twice {
			d.reportDuplicate(key, at, first)
		}
		elem := reflect.New(v.Type().Elem()).Elem()
		d.value(n.Content[i+1], elem, at)
		v.SetMapIndex(reflect.ValueOf(key.Value), elem)
		seen[key.Value] = key
	}
}

// gatesText decodes feature gates as a flag has them, in files of kube-proxy 1.9 or older.
func (d *decoder) gatesText(n *yaml.Node, path string) {
	gates := gateValue{}
	if err := gates.Set(n.Value); err != nil {
		d.errorf(n, path, "%v", err)
		return
	}
	d.Values.FeatureGates = gates
	d.notef(n, path, "is text, as in files of kube-proxy 1.9 and older: want a mapping")
}

// setScalar sets v from n. It returns false if n does not have the form of v's type.
func setScalar(n *yaml.Node, v reflect.Value) bool {
	whole, isWhole := wholeNumber(n)
	if u, ok := v.Addr().Interface().(json.Unmarshaler); ok {
		text, _ := json.Marshal(n.Value)
		if isWhole {
			text = []byte(whole)
		}
		return json.Valid(text) && u.UnmarshalJSON(text) == nil
	}
	switch v.Kind() {
	case reflect.String: // 10 is as valid a name as "10"
		v.SetString(n.Value)
		return true
	case reflect.Bool:
		return n.Decode(v.Addr().Interface()) == nil
	case reflect.Int32:
		i, err := strconv.ParseInt(whole, 10, 32)
		v.SetInt(i)
		return isWhole && err == nil
	case reflect.Uint32:
		u, err := strconv.ParseUint(whole, 10, 32)
		v.SetUint(u)
		return isWhole && err == nil
	case reflect.Float32:
		var f float32
		if !slices.Contains([]string{"!!int", "!!float"}, n.ShortTag()) || n.Decode(&f) != nil {
			return false
		}
		v.SetFloat(float64(f))
		return !math.IsNaN(float64(f)) && !math.IsInf(float64(f), 0)
	}
	return false
}

// wholeNumber returns a whole number in decimal. Helm writes 1048576 as 1.048576e+06.
func wholeNumber(n *yaml.Node) (string, bool) {
	switch n.ShortTag() {
	case "!!int":
		var i int64
		err := n.Decode(&i)
		return strconv.FormatInt(i, 10), err == nil
	case "!!float":
		var f float64
		err := n.Decode(&f)
		return strconv.FormatFloat(f, 'f', 0, 64), err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53
	}
	return "", false
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

// paths lists the dotted paths of all fields of t, a struct, sections first.
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
	if c, is := reflect.New(t).Interface().(interface{ forms() forms }); is {
		return c.forms().want
	}
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		return "a duration such as 30s or 1h30m"
	case reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		return "a duration such as 5s, or nanoseconds"
	case reflect.TypeFor[SelectionSlots]():
		return wantSlots
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

// didYouMean renders a suggestion, which may be empty, for the end of an error.
func didYouMean(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", name)
}

// closestPath searches for a misspelt key first in its section, then everywhere by its
// own name, because a known field may be in the wrong section.
func closestPath(path string) string {
	all := paths(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	for _, s := range ownSwitches {
		all = append(all, s.path)
	}
	i := strings.LastIndexByte(path, '.') + 1
	parent, key := path[:i], path[i:]
	var near, names []string
	byName := map[string]string{}
	for _, p := range all {
		j := strings.LastIndexByte(p, '.') + 1
		if p[:j] == parent {
			near = append(near, p[j:])
		}
		if _, dup := byName[p[j:]]; !dup {
			byName[p[j:]] = p
			names = append(names, p[j:])
		}
	}
	if c := suggest.Closest(key, near); c != "" {
		return parent + c
	}
	return byName[suggest.Closest(key, names)]
}

// inheritedFields are the settings of section nftables that section iptables has too.
// Periods are inherited together, because one limits the other.
var inheritedFields = [][]string{{"masqueradeAll"}, {"masqueradeBit"}, {"minSyncPeriod", "syncPeriod"}}

// inheritFields makes mode nftables use the settings in section iptables, if the file
// sets neither a mode nor the same settings in section nftables. When such a file was
// written, no mode meant iptables. For a file that names one of the two modes,
// inheritFields adds notes about settings that exist for the other mode only.
func (b *build) inheritFields() {
	if b.os != Linux {
		return
	}
	for _, names := range inheritedFields {
		switch b.Mode {
		case "":
			if b.setsAny("iptables", names) && !b.setsAny("nftables", names) {
				b.copyFields(names)
			}
		case NFTables:
			b.noteOther("iptables", "nftables", names)
		case IPTables:
			b.noteOther("nftables", "iptables", names)
		}
	}
}

// setsAny reports whether the file or a flag sets one of the settings of section to a
// value other than its default. A period of 0 counts as the default.
func (b *build) setsAny(section string, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return b.differs(section + "." + name) })
}

func (b *build) differs(path string) bool {
	plain := v1alpha1.KubeProxyConfiguration{}
	setDefaults(&plain, b.os, func(string) bool { return false })
	v := fieldAt(&b.KubeProxyConfiguration, path)
	return b.given(path) && !v.IsZero() && showValue(v) != showValue(fieldAt(&plain, path))
}

func (b *build) copyFields(names []string) {
	for _, name := range names {
		from, to := "iptables."+name, "nftables."+name
		fieldAt(&b.KubeProxyConfiguration, to).Set(fieldAt(&b.KubeProxyConfiguration, from))
		if b.differs(from) {
			b.notef(from, "applies to mode nftables, too, because neither mode nor %s is set", to)
		}
	}
}

// noteOther adds notes about settings for the mode other that mine, the present one, lacks.
func (b *build) noteOther(other, mine string, names []string) {
	for _, name := range names {
		if b.differs(other+"."+name) && !b.setsAny(mine, names) {
			b.notef(other+"."+name, "has no effect in mode %s: set %s.%s", mine, mine, name)
		}
	}
}
