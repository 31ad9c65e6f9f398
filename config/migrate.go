// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"fmt"
	"slices"

	yaml "go.yaml.in/yaml/v3"

	"kubeproxy/common/printable"
)

// Migrate returns the file at path without removed fields, and lists these. The rest
// remains as it was written.
func Migrate(path string) ([]byte, []Note, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, nil, err
	}
	file, err := Parse(path, data)
	if file != nil {
		err = file.Strict()
	}
	if err != nil {
		return nil, nil, err
	}
	if len(file.Notes) == 0 {
		return data, nil, nil
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, nil, syntaxError(path, err)
	}
	removeFields(doc.Content[0], "")
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return nil, nil, fmt.Errorf("encode %s: %w", printable.Text(path), err)
	}
	if _, err := Parse(path, out.Bytes()); err != nil {
		return nil, nil, fmt.Errorf("%s: an alias (*name) refers to a removed field: write the value out first", printable.Text(path))
	}
	return out.Bytes(), file.Notes, nil
}

// removeFields deletes removed fields from a mapping and its sections.
func removeFields(n *yaml.Node, parent string) {
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i < len(n.Content); {
		path := joinPath(parent, n.Content[i].Value)
		if _, removed := removedFields[path]; removed {
			n.Content = slices.Delete(n.Content, i, i+2)
			continue
		}
		removeFields(n.Content[i+1], path)
		i += 2
	}
}
