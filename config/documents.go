// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"kubeproxy/common/files"
	"kubeproxy/common/printable"
)

// Found is a KubeProxyConfiguration and where it was found.
type Found struct {
	// Name is for messages: a file, or a file with a line and a key.
	Name string
	// Where names the part of the file, such as "the document at line 52". It is empty if the
	// file as it is can be given to --config.
	Where string
	// Data is the configuration. Its lines are counted as in the file, if it has lines there.
	Data []byte
	// Server is the address of the API server in a kubeconfig beside it, empty if there is none.
	Server string
}

// Find returns the configurations in a file that is for others, too: documents of kubeadm's, and
// values of ConfigMaps, or else the whole file, for Parse to describe.
func Find(name string, data []byte) ([]Found, error) {
	name = printable.Text(name)
	all := documents(plainText(data))
	var found []Found
	var kinds []string
	server := ""
	for i, d := range all {
		root, err := d.value(name)
		switch {
		case err != nil && strings.Contains(d.text, kind), err == nil && isOurs(root):
			if i == 0 { // what --config reads; Parse warns of the rest
				return []Found{{Name: name, Data: data}}, nil
			}
			found = append(found, Found{Name: name, Where: fmt.Sprintf("the document at line %d", d.line), Data: d.padded()})
		case err == nil:
			if in, ok := d.embedded(root); ok {
				found = append(found, Found{Name: name, Where: "kubeProxy.config of " + describeKind(root), Data: in.padded()})
			}
			found = append(found, inObject(name, root)...)
			server = cmp.Or(server, serverIn(root))
			kinds = append(kinds, fmt.Sprintf("%s at line %d", describeKind(root), d.line))
		}
	}
	for i := range found {
		found[i].Server = server
	}
	switch {
	case len(found) > 0:
		return found, nil
	case len(all) > 1 && len(kinds) > 0:
		return nil, fmt.Errorf("%s: has no %s: it has %s", name, kind, strings.Join(first10(kinds), ", "))
	}
	return []Found{{Name: name, Data: data}}, nil
}

// serverIn returns the API server's address in a kubeconfig, n itself or a ConfigMap's data.
func serverIn(n *yaml.Node) string {
	if clusters := field(n, "clusters"); clusters != nil && len(clusters.Content) > 0 {
		return scalar(field(field(clusters.Content[0], "cluster"), "server"))
	}
	for _, key := range []string{"items", "data"} {
		in := field(n, key)
		if in == nil {
			continue
		}
		for _, c := range in.Content {
			if strings.Contains(c.Value, "clusters:") {
				c, _ = document{1, c.Value}.value("")
			}
			if server := serverIn(c); server != "" {
				return server
			}
		}
	}
	return ""
}

// readPipe reads a named pipe until its writers end.
func readPipe(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	return Read(f)
}

// FindIn is Find for the file at path, or for standard input where that is -.
func FindIn(standard io.Reader, path string) ([]Found, error) {
	var data []byte
	var err error
	pipe, _ := os.Stat(path)
	switch {
	case path == "-":
		path = "standard input"
		data, err = Read(standard)
	case pipe != nil && pipe.Mode()&fs.ModeNamedPipe != 0: // <(...) of a shell
		data, err = readPipe(path)
	default:
		data, err = readFile(path)
	}
	if err != nil {
		return nil, err
	}
	return Find(path, data)
}

// FindOne is FindIn for a file with one configuration.
func FindOne(standard io.Reader, path string) (Found, error) {
	found, err := FindIn(standard, path)
	if err != nil {
		return Found{}, err
	}
	if len(found) > 1 {
		return Found{}, fmt.Errorf("%s has several configurations: %s, and %s: want a file with one", printable.Text(path), found[0].Where, found[1].Where)
	}
	return found[0], nil
}

// inObject returns the configurations in the values of a ConfigMap, or of those in a List.
func inObject(name string, n *yaml.Node) []Found {
	var found []Found
	if items := field(n, "items"); items != nil && items.Kind == yaml.SequenceNode {
		for _, item := range items.Content {
			found = append(found, inObject(name, item)...)
		}
	}
	values := field(n, "data")
	if values == nil || values.Kind != yaml.MappingNode {
		return found
	}
	meta := field(n, "metadata")
	of := scalar(field(meta, "name"))
	if namespace := scalar(field(meta, "namespace")); namespace != "" {
		of = namespace + "/" + of
	}
	for i := 0; i < len(values.Content); i += 2 {
		key, val := values.Content[i], values.Content[i+1]
		if val.Kind != yaml.ScalarNode {
			continue
		}
		where := fmt.Sprintf("data[%.80q] of %s", key.Value, strings.TrimSpace(scalar(field(n, "kind"))+" "+of))
		at, first := name, val.Line+1
		if val.Style&yaml.LiteralStyle == 0 { // its lines are no lines of the file
			at, first = fmt.Sprintf("%s:%d: data[%.80q]", name, val.Line, key.Value), 1
		}
		if d, ok := ourDocument(at, val.Value, first); ok {
			found = append(found, Found{Name: at, Where: printable.Text(where), Data: d.padded()})
		}
	}
	return found
}

// ourDocument returns the document of text, from line first on, that is or may be a configuration.
func ourDocument(name, text string, first int) (document, bool) {
	if !strings.Contains(text, kind) && !strings.Contains(text, "kubeProxy:") {
		return document{}, false
	}
	for _, d := range documents(text) {
		d.line += first - 1
		root, err := d.value(name)
		if err == nil && isOurs(root) || err != nil && strings.Contains(d.text, kind) {
			return d, true
		}
		if in, ok := d.embedded(root); ok {
			return in, true
		}
	}
	return document{}, false
}

// embedded returns the configuration inside the MasterConfiguration of kubeadm 1.8 to 1.11,
// which has neither apiVersion nor kind. They get the two lines before it.
func (d document) embedded(root *yaml.Node) (document, bool) {
	in := field(field(root, "kubeProxy"), "config")
	if in == nil || in.Kind != yaml.MappingNode || in.Style&yaml.FlowStyle != 0 || in.Line < 3 {
		return document{}, false
	}
	by := strings.Repeat(" ", in.Column-1)
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\n", apiVersion, kind)
	for _, l := range strings.SplitAfter(d.text, "\n")[in.Line-d.line:] {
		rest, inside := strings.CutPrefix(l, by)
		if !inside && strings.TrimSpace(l) != "" {
			break
		}
		text += rest
	}
	return document{in.Line - 2, text}, true
}

// document is a document of a YAML file that is not empty.
type document struct {
	line int // where text begins
	text string
}

// documents splits a file at the marks that begin and end documents, which are marks in
// every other context, too (YAML 1.2.2, section 9.1). It leaves out empty ones.
func documents(text string) []document {
	var all []document
	line, start, pos, began := 0, 0, 0, 1
	end := func() {
		if hasContent(text[start:pos]) {
			all = append(all, document{began, text[start:pos]})
		}
	}
	for l := range strings.Lines(text) {
		line++
		switch {
		case isMark(l, "---"):
			end()
			start, began = pos, line
		case isMark(l, "..."):
			end()
			start, began = pos+len(l), line+1
		}
		pos += len(l)
	}
	end()
	return all
}

func isMark(line, mark string) bool {
	rest, is := strings.CutPrefix(line, mark)
	return is && (rest == "" || strings.ContainsAny(rest[:1], " \t\r\n"))
}

// hasContent reports whether text has more than marks, directives and comments.
func hasContent(text string) bool {
	for l := range strings.Lines(text) {
		if isMark(l, "---") {
			l = l[len("---"):]
		}
		if l = strings.TrimRight(l, "\r\n"); strings.HasPrefix(l, "%") {
			continue
		}
		if l = strings.TrimSpace(l); l != "" && l[0] != '#' {
			return true
		}
	}
	return false
}

// padded returns the text after as many empty lines as come before it in the file.
func (d document) padded() []byte { return []byte(strings.Repeat("\n", d.line-1) + d.text) }

// value returns what the document has, with the lines of the file.
func (d document) value(name string) (*yaml.Node, error) {
	doc, err := d.parse(name)
	if err != nil {
		return nil, err
	}
	return doc.Content[0], nil
}

// parse returns the document, which has one value.
func (d document) parse(name string) (*yaml.Node, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(d.text), &doc); err != nil {
		return nil, syntaxError(name, d.line-1, err)
	}
	if len(doc.Content) == 0 {
		return nil, fmt.Errorf("%s:%d: is empty", name, d.line)
	}
	moveLines(&doc, d.line-1)
	return &doc, nil
}

func moveLines(n *yaml.Node, by int) {
	n.Line += by
	for _, c := range n.Content {
		moveLines(c, by)
	}
}

// isOurs reports whether a document is meant to be a KubeProxyConfiguration.
func isOurs(n *yaml.Node) bool {
	version := scalar(field(n, "apiVersion"))
	return scalar(field(n, "kind")) == kind || strings.HasPrefix(version, apiGroup) || version == oldAPIVersion
}

func first10(all []string) []string { return all[:min(len(all), 10)] }

func describeKind(n *yaml.Node) string {
	return cmp.Or(printable.Text(scalar(field(n, "kind"))), "a document without kind")
}

// field returns the value of a key, nil if n is no mapping or has none.
func field(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := len(n.Content) - 2; i >= 0; i -= 2 { // the last one counts
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func scalar(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

// plainText returns data in UTF-8 without a byte order mark.
func plainText(data []byte) string { return string(files.Text(data)) }

// maxExpanded bounds the values that aliases stand for. A file with all settings has a hundred.
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
