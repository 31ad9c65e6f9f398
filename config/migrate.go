// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"

	yaml "go.yaml.in/yaml/v3"
)

// Migrate returns a configuration as --config takes it, otherwise as written, without what has no
// effect, and lists that. It fails if a start on os would refuse the result.
func Migrate(f Found, modes []Mode, os OS) ([]byte, []Note, error) {
	file, err := Parse(f.Name, f.Data)
	if err != nil {
		return nil, nil, err
	}
	m := migration{file: file}
	m.sections(file.doc.Content[0], "")
	out := f.Data
	all := documents(plainText(f.Data))
	switch {
	case m.changed:
		if out, err = encode(file.doc); err != nil {
			return nil, nil, fmt.Errorf("%s: encode: %w", f.Name, err)
		}
	case len(all) > 1 || f.Where != "":
		out = append(bytes.Trim([]byte(all[0].text), "\n"), '\n')
	}
	if _, err := LoadFrom(&Flags{Modes: modes, Config: f.Name}, os, out); err != nil {
		_, err = LoadFrom(&Flags{Modes: modes, Config: f.Name}, os, f.Data) // with its lines
		return nil, nil, fmt.Errorf("the result could not be used on %s: %w", os, err)
	}
	return out, m.notes, nil
}

func encode(doc *yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	err := enc.Encode(doc)
	return out.Bytes(), err
}

// migration changes the nodes of a file.
type migration struct {
	file    *File
	notes   []Note // what was left out
	changed bool
}

// sections visits a mapping and its sections.
func (m *migration) sections(n *yaml.Node, parent string) {
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i < len(n.Content); {
		key, val := n.Content[i], n.Content[i+1]
		path := joinPath(parent, key.Value)
		note, unused := m.file.unused[key]
		switch {
		case path == "featureGates" && !unused:
			if m.gates(val); len(val.Content) == 0 && m.changed {
				unused = true
			}
		case path == "apiVersion" && val.Value != apiVersion:
			val.Value, m.changed = apiVersion, true
		}
		if note.Text != "" {
			m.notes = append(m.notes, note)
		}
		if unused {
			n.Content, m.changed = slices.Delete(n.Content, i, i+2), true
			continue
		}
		m.sections(val, path)
		i += 2
	}
}

// gates writes feature gates as a mapping of those that have an effect.
func (m *migration) gates(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() != "!!null" {
		line := n.Line
		*n = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: line}
		for _, name := range slices.Sorted(maps.Keys(m.file.Values.FeatureGates)) {
			on := strconv.FormatBool(m.file.Values.FeatureGates[name])
			n.Content = append(n.Content,
				&yaml.Node{Kind: yaml.ScalarNode, Value: name, Line: line},
				&yaml.Node{Kind: yaml.ScalarNode, Value: on, Tag: "!!bool", Line: line})
		}
		m.changed = true
	}
	for i := 0; i < len(n.Content); {
		key := n.Content[i]
		note, unused := m.file.unused[key]
		if !unused && acts(key.Value) {
			i += 2
			continue
		}
		if !unused {
			note = Note{fmt.Sprintf("%s:%d", m.file.Name, key.Line), "featureGates[" + key.Value + "]", "has no effect here"}
		}
		m.notes = append(m.notes, note)
		n.Content, m.changed = slices.Delete(n.Content, i, i+2), true
	}
}
