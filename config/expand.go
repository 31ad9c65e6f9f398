// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"

	yaml "go.yaml.in/yaml/v3"
)

// maxExpanded bounds the values that the aliases of a file stand for. A file with all
// settings has a hundred values.
const maxExpanded = 10_000

// expander replaces aliases (*name) and merge keys (<<) by what they stand for.
type expander struct {
	name string // of the file
	left int    // values that aliases may still stand for
}

// expand changes n, and returns what replaces it.
func (x *expander) expand(n *yaml.Node) (*yaml.Node, error) {
	if n.Kind == yaml.AliasNode {
		return x.copy(n.Alias, n)
	}
	n.Anchor = ""
	for i, c := range n.Content {
		var err error
		if n.Content[i], err = x.expand(c); err != nil {
			return nil, err
		}
	}
	return n, x.merge(n)
}

// copy returns a copy of n for an alias.
func (x *expander) copy(n, alias *yaml.Node) (*yaml.Node, error) {
	if x.left--; x.left < 0 {
		return nil, fmt.Errorf("%s:%d: the aliases (*name) stand for more than %d values: write them out", x.name, alias.Line, maxExpanded)
	}
	if n.Kind == yaml.AliasNode {
		return x.copy(n.Alias, alias)
	}
	c := *n
	c.Anchor, c.Content = "", slices.Clone(n.Content)
	for i := range c.Content {
		var err error
		if c.Content[i], err = x.copy(c.Content[i], alias); err != nil {
			return nil, err
		}
	}
	return &c, x.merge(&c)
}

// merge replaces the merge keys of a mapping by the fields that it does not have itself.
// Of several sources the first counts (https://yaml.org/type/merge.html).
func (x *expander) merge(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	var own, merged []*yaml.Node
	has := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		switch {
		case key.Tag != "!!merge":
			own = append(own, key, val)
			has[key.Value] = true
		case val.Kind == yaml.SequenceNode:
			merged = append(merged, val.Content...)
		default:
			merged = append(merged, val)
		}
	}
	for _, from := range merged {
		if from.Kind != yaml.MappingNode {
			return fmt.Errorf("%s:%d: the merge key (<<) has %s: want mappings", x.name, from.Line, describe(from))
		}
		for i := 0; i < len(from.Content); i += 2 {
			if key := from.Content[i]; !has[key.Value] {
				own = append(own, key, from.Content[i+1])
				has[key.Value] = true
			}
		}
	}
	n.Content = own
	return nil
}
