// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	"kubeproxy/common/printable"
)

// DataForms are the formats for programs, as kubectl has them.
const DataForms = "json, yaml or jsonpath=TEMPLATE"

const (
	asYAML     = "yaml"
	asJSONPath = "jsonpath="
)

// IsData reports whether format is for programs. The error is about a template.
func IsData(format string) (bool, error) {
	if template, ok := strings.CutPrefix(format, asJSONPath); ok {
		_, err := parse(template)
		return true, err
	}
	return format == string(JSON) || format == asYAML, nil
}

// WriteData writes value in a format for programs. Foreign text cannot control a terminal.
func WriteData(w io.Writer, format string, value any) error {
	if format == string(JSON) {
		return WriteReadable(w, value)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w = printable.Writer(w)
	template, is := strings.CutPrefix(format, asJSONPath)
	if !is {
		if text, err = yaml.JSONToYAML(text); err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	path, err := parse(template)
	if err != nil {
		return err
	}
	var data any
	if err := utiljson.Unmarshal(text, &data); err != nil {
		return err
	}
	return path.Execute(w, data)
}

// parse reads a template. Braces around one path alone may be left out.
func parse(template string) (*jsonpath.JSONPath, error) {
	if !strings.Contains(template, "{") {
		template = "{." + strings.TrimPrefix(template, ".") + "}"
	}
	path := jsonpath.New("output").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return nil, fmt.Errorf("template %q: %w: want one such as {.ok} or {.services[*].name}", template, err)
	}
	return path, nil
}
