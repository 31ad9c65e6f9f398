// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	kjson "sigs.k8s.io/json"

	"kubeproxy/common/files"
	"kubeproxy/common/printable"
	"kubeproxy/common/suggest"
)

// key identifies an object. The zero key means that the object is unknown.
type key struct {
	kind string
	name types.NamespacedName
}

// String quotes a name unless it is plain, because names are not validated yet.
func (k key) String() string {
	plain := func(s string) string {
		if q := strconv.Quote(s); q != `"`+s+`"` || len(s) > 253 {
			return fmt.Sprintf("%.80q", s)
		}
		return s
	}
	if k.name.Namespace == "" {
		return k.kind + " " + plain(k.name.Name)
	}
	return k.kind + " " + plain(k.name.Namespace) + "/" + plain(k.name.Name)
}

// kindOrder lists the kinds in the order of delivery.
const kindOrder = "Node ServiceCIDR Service EndpointSlice"

func compareKeys(a, b key) int {
	return cmp.Or(
		cmp.Compare(kindIndex(a.kind), kindIndex(b.kind)),
		cmp.Compare(a.name.Namespace, b.name.Namespace),
		cmp.Compare(a.name.Name, b.name.Name),
	)
}

// kindIndex returns the position of a kind in kindOrder.
func kindIndex(kind string) int { return strings.Index(kindOrder+" ", kind+" ") }

// object is a decoded *corev1.Service, *corev1.Node, *endpoints,
// *discoveryv1.EndpointSlice or *networkingv1.ServiceCIDR.
type object struct {
	key   key
	value any
}

// manifestStore is the state of all files and what was delivered of it.
type manifestStore struct {
	decoder   decoder
	node      string
	paths     []string
	contents  map[string][]byte
	listings  map[string]*listing
	files     map[string]*file
	delivered map[key]any

	unread int  // as last passed to the sink
	never  int  // files and directories of which nothing was ever readable
	held   bool // a file has objects

	report   func(Fault)
	problems []problem // as of the last refresh
	reported faults
}

// problem is a problem with an object. One object may have several.
type problem struct {
	object string // as in Fault
	err    error
	single bool // others of the file can be used
}

func newManifestStore(m *Manifests) *manifestStore {
	return &manifestStore{
		decoder:   decoder{note: m.Note, noted: map[string]bool{}},
		node:      normalizeNode(m.NodeName),
		paths:     m.Paths,
		contents:  m.Contents,
		listings:  map[string]*listing{},
		files:     map[string]*file{},
		delivered: map[key]any{},
		report:    m.Report,
	}
}

func normalizeNode(name string) string {
	return strings.ToLower(strings.TrimSpace(name))
}

// refresh reads changed files and delivers the difference. hindrance, if not nil, is why changes
// cannot be watched, which is reported with the other problems.
func (m *manifestStore) refresh(sink Sink, hindrance error) {
	m.problems = nil
	if hindrance != nil {
		m.problems = append(m.problems, problem{object: "changes of files", err: hindrance})
	}
	all := m.readFiles(time.Now())
	wanted := m.merge(all)
	// A renamed port changes both in a Service and in its slices.
	sink.Batch(func() {
		m.deliver(sink, wanted)
		m.reportUnread(sink, all)
	})
	m.reported = m.reported.report(m.problems, m.report)
}

// reportUnread counts the files with content of which no good version was ever read, and
// the directories that were never listed. Their previous content is unknown.
func (m *manifestStore) reportUnread(sink Sink, all []*file) {
	unread := 0
	m.never, m.held = 0, false
	for _, f := range all {
		m.held = m.held || len(f.objects) > 0
		if f.unknown {
			unread++
		}
		if f.unknown && len(f.objects) == 0 {
			m.never++
		}
	}
	for _, dir := range m.listings {
		if dir.err != nil && len(dir.files) == 0 {
			unread++
			m.never++
		}
	}
	if unread != m.unread {
		m.unread = unread
		sink.Unread(unread)
	}
}

// readFiles refreshes the files and returns them in order.
func (m *manifestStore) readFiles(now time.Time) []*file {
	var order []*file
	seen := map[string]*file{}
	for _, path := range m.paths {
		if m.listings[path] == nil {
			m.listings[path] = &listing{}
		}
		dir := m.listings[path]
		if m.contents[path] != nil {
			*dir = listing{files: []string{path}}
		} else {
			dir.list(path)
		}
		if dir.err != nil {
			m.problems = append(m.problems, problem{object: path, err: dir.err})
		} else if len(dir.files) == 0 {
			m.decoder.noteOnce(path, fmt.Sprintf("%s: no file in it ends in .yaml, .yml or .json; folders in it are not read", path))
		}
		for _, name := range dir.files {
			if seen[name] != nil {
				continue
			}
			f := m.files[name]
			if f == nil {
				f = &file{path: name}
			}
			if content := m.contents[path]; content != nil {
				f.parse(&m.decoder, files.Text(content))
			} else if dir.err == nil {
				f.refresh(&m.decoder, now)
			}
			seen[name] = f
			order = append(order, f)
		}
	}
	m.files = seen
	return order
}

// merge returns the combined content of the files: the first object of each name, and
// Endpoints only for Services without slices.
func (m *manifestStore) merge(all []*file) map[key]any {
	type first struct {
		object
		path string
	}
	seen := make(map[key]first, len(m.delivered))
	sliced := map[types.NamespacedName]bool{}
	for _, f := range all {
		m.problems = append(m.problems, f.problems...)
		var twice []problem
		for _, o := range f.objects {
			if have, dup := seen[o.key]; dup {
				twice = append(twice, problem{
					f.path + ": " + o.key.String(),
					fmt.Errorf("manifest %s: %s is ignored: %s has it already", printable.Text(f.path), o.key, printable.Text(have.path)),
					true,
				})
				continue
			}
			seen[o.key] = first{o, f.path}
			if s, ok := o.value.(*discoveryv1.EndpointSlice); ok {
				sliced[types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}] = true
			}
		}
		m.problems = append(m.problems, firstProblems(f.path, twice)...)
	}
	wanted := make(map[key]any, len(seen))
	for k, o := range seen {
		switch v := o.value.(type) {
		case *endpoints:
			if !sliced[k.name] {
				addSlices(wanted, v)
			}
		case *corev1.Node:
			if normalizeNode(v.Name) == m.node {
				wanted[k] = v
			}
		default:
			wanted[k] = v
		}
	}
	return wanted
}

// firstProblems returns the first few problems with duplicate objects, and how many follow.
func firstProblems(path string, twice []problem) []problem {
	if len(twice) <= maxProblems {
		return twice
	}
	more := fmt.Errorf("manifest %s: %d more objects are ignored: they are there already", path, len(twice)-maxProblems)
	return append(twice[:maxProblems], problem{path + ": objects that are there already", more, true})
}

func addSlices(to map[key]any, e *endpoints) {
	for _, s := range slicesOf(e) {
		to[key{"EndpointSlice", types.NamespacedName{Namespace: s.Namespace, Name: s.Name}}] = s
	}
}

// deliver passes the difference to the sink. New objects come before deletions, so that
// endpoints which move between slices are never missing.
func (m *manifestStore) deliver(sink Sink, wanted map[key]any) {
	var fresh, deleted []key // sorting everything would take longer than comparing it
	for k, v := range wanted {
		if old, ok := m.delivered[k]; ok && (old == v || reflect.DeepEqual(old, v)) {
			wanted[k] = old
			continue
		}
		fresh = append(fresh, k)
	}
	for k := range m.delivered {
		if _, ok := wanted[k]; !ok {
			deleted = append(deleted, k)
		}
	}
	slices.SortFunc(fresh, compareKeys)
	slices.SortFunc(deleted, compareKeys)
	for _, k := range fresh {
		sinkSet(sink, wanted[k])
	}
	for _, k := range deleted {
		sinkDelete(sink, k)
	}
	m.delivered = wanted
}

func sinkSet(sink Sink, v any) {
	switch v := v.(type) {
	case *corev1.Node:
		sink.SetNode(v)
	case *corev1.Service:
		sink.SetService(v)
	case *discoveryv1.EndpointSlice:
		sink.SetSlice(v)
	case *networkingv1.ServiceCIDR:
		sink.SetServiceCIDR(v)
	}
}

func sinkDelete(sink Sink, k key) {
	switch k.kind {
	case "Node":
		sink.DeleteNode()
	case "Service":
		sink.DeleteService(k.name)
	case "EndpointSlice":
		sink.DeleteSlice(k.name)
	case "ServiceCIDR":
		sink.DeleteServiceCIDR(k.name.Name)
	}
}

// recheckAfter returns the time until the next check without a notification.
func (m *manifestStore) recheckAfter() time.Duration {
	for _, f := range m.files {
		if !f.emptySince.IsZero() {
			return emptyGrace / 4
		}
	}
	return time.Duration(1<<63 - 1)
}

// typeError describes which field has a value of the wrong type. It decodes again with
// the standard library, because only that reports the whole path.
func typeError(text []byte, like any, err error) error {
	into := reflect.New(reflect.TypeOf(like).Elem()).Interface()
	var wrong *json.UnmarshalTypeError
	if !errors.As(json.Unmarshal(text, into), &wrong) {
		return err
	}
	if wrong.Field == "" {
		return fmt.Errorf("want an object, found %s", article(wrong.Value))
	}
	return fmt.Errorf("%s: want %s, found %s", wrong.Field, expected(wrong.Type), article(wrong.Value))
}

func article(value string) string {
	if strings.HasPrefix(value, "number ") {
		return value
	}
	switch value {
	case "array":
		return "a list"
	case "bool":
		return "true or false"
	case "object":
		return "an object"
	}
	return "a " + value
}

func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "an object"
	}
	return "a number that fits " + t.Kind().String()
}

// explainAll explains strict decoding errors, as many as out has room for.
func (i item) explainAll(value any, strict []error, out *decoded) []error {
	if len(strict) == 0 {
		return nil
	}
	room := max(maxProblems-len(out.rejected), 1)
	var more error
	if len(strict) > room {
		more = fmt.Errorf("and %d more", len(strict)-room)
		strict = strict[:room]
	}
	lines := map[string]int{}
	for _, err := range strict {
		if _, last, ok := fieldOf(err); ok {
			lines[last] = 0
		}
	}
	if len(out.rejected) < maxProblems {
		i.doc.findLines(lines)
	}
	var errs []error
	for _, err := range strict {
		errs = append(errs, i.explain(value, err, lines))
	}
	if more != nil {
		errs = append(errs, more)
	}
	return errs
}

// fieldOf returns the field that a strict decoding error is about.
func fieldOf(err error) (parent, last string, ok bool) {
	var field kjson.FieldError
	if !errors.As(err, &field) {
		return "", "", false
	}
	path := field.FieldPath()
	if n := strings.LastIndexByte(path, '.'); n >= 0 {
		return path[:n], path[n+1:], true
	}
	return "", path, true
}

// explain adds the line, if it is one, and a suggestion to a strict decoding error.
func (i item) explain(value any, err error, lines map[string]int) error {
	parent, last, ok := fieldOf(err)
	if !ok {
		return err
	}
	if strings.Contains(err.Error(), "unknown field") {
		if near := suggest.Closest(last, fieldsAt(reflect.TypeOf(value), parent)); near != "" {
			err = fmt.Errorf("%w; did you mean %s?", err, near)
		}
	}
	if line := lines[last]; line > 0 {
		err = fmt.Errorf("line %d: %w", line, err)
	}
	return err
}

// findLines sets for each key in lines the number of its line, or 0 unless one line has it.
func (d document) findLines(lines map[string]int) {
	seen := make(map[string]bool, len(lines))
	line := d.line - 1
	for row := range bytes.Lines(d.text) {
		line++
		row = bytes.TrimPrefix(bytes.TrimLeft(row, " \t-{"), []byte(`"`))
		n := bytes.IndexAny(row, "\": \t")
		if n < 0 || !bytes.HasPrefix(bytes.TrimLeft(row[n:], "\" \t"), []byte(":")) {
			continue
		}
		name := string(row[:n])
		if _, wanted := lines[name]; !wanted {
			continue
		}
		if lines[name] = line; seen[name] {
			lines[name] = 0
		}
		seen[name] = true
	}
}

// fieldsAt lists the JSON names of fields in a type under path, such as "spec.ports[0]".
func fieldsAt(t reflect.Type, path string) []string {
	for _, step := range strings.Split(path, ".") {
		name, _, _ := strings.Cut(step, "[")
		next, ok := fieldNames(t)[name]
		if name != "" && !ok {
			return nil
		}
		if name != "" {
			t = next
		}
	}
	return slices.Sorted(maps.Keys(fieldNames(t)))
}

// fieldNames returns a struct's fields by JSON name, including those of inlined structs.
func fieldNames(t reflect.Type) map[string]reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	fields := map[string]reflect.Type{}
	if t.Kind() != reflect.Struct {
		return fields
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name != "" && name != "-":
			fields[name] = f.Type
		case f.Anonymous && name == "":
			for n, sub := range fieldNames(f.Type) {
				fields[n] = sub
			}
		}
	}
	return fields
}

// joinLine joins errors on one line.
func joinLine(errs []error) error {
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}
