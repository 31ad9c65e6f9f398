// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"

	"kubeproxy/common/suggest"
)

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

// explain adds the line, if it is unambiguous, and a suggestion for the field name to a
// strict decoding error.
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

// findLines sets for each key in lines the number of its line, or 0 unless exactly one
// line has the key.
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

// fieldsAt lists the JSON names of the fields in a type under path, such as
// "spec.ports[0]".
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
