// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	yamlv3 "go.yaml.in/yaml/v3"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// document is a YAML or JSON document of a file, or an item of a List in it.
type document struct {
	line   int // where it starts, from 1
	text   []byte
	json   bool
	within string // position in a List, "" outside of one
}

// documents splits content at document markers and calls each for one document after
// another, until each returns false. YAML reserves the markers at the start of a line,
// even within a block scalar: https://yaml.org/spec/1.1/.
func documents(content []byte, each func(document) bool) {
	first, start := 1, 0 // of the document at hand
	line, pos := 1, 0
	more := true
	end := func(next, nextLine int) {
		if text := content[start:pos]; more && len(bytes.TrimSpace(text)) > 0 {
			lead := len(text) - len(bytes.TrimLeft(text, "\n"))
			more = each(document{line: first + lead, text: text[lead:]})
		}
		start, first = next, nextLine
	}
	for more && pos < len(content) {
		next := len(content)
		if i := bytes.IndexByte(content[pos:], '\n'); i >= 0 {
			next = pos + i + 1
		}
		switch row := content[pos:next]; {
		case isMarker(row, "---"):
			end(pos+3, line)
		case isMarker(row, "..."):
			end(next, line+1)
		}
		pos = next
		line++
	}
	end(pos, line)
}

func isMarker(row []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(row, []byte(marker))
	return ok && (len(rest) == 0 || bytes.ContainsRune([]byte(" \t\n"), rune(rest[0])))
}

func (d document) wrap(err error) error { return fmt.Errorf("%s: %w", d.position(), err) }

func (d document) position() string {
	if d.within != "" {
		return fmt.Sprintf("%s at line %d", d.within, d.line)
	}
	return fmt.Sprintf("document at line %d", d.line)
}

// entry is a key of a block mapping, and its value with the lines of it.
type entry struct {
	key  string
	rest []byte // what follows the key on its line
	line int    // of the key, from 0
	text []byte // the lines after it
}

// maxEntries is more keys than metadata or the top of an object has.
const maxEntries = 64

// entries returns the keys of the block mapping that text is, without parsing values, else nil.
func entries(text []byte) []entry {
	var all []entry
	margin, start := -1, 0
	pos := 0
	for line := 0; pos < len(text); line++ {
		row, _, _ := bytes.Cut(text[pos:], []byte("\n"))
		next := min(pos+len(row)+1, len(text))
		trimmed := bytes.TrimLeft(row, " ")
		indent := len(row) - len(trimmed)
		n := 0
		if len(trimmed) > 0 && trimmed[0] != '#' && (margin < 0 || indent <= margin) {
			if n = keyLength(trimmed); margin < 0 && n == 0 || indent < margin || len(all) == maxEntries {
				return nil
			}
		}
		if n > 0 {
			if margin = indent; len(all) > 0 {
				all[len(all)-1].text = text[start:pos]
			}
			all = append(all, entry{key: string(trimmed[:n]), rest: bytes.TrimSpace(trimmed[n+1:]), line: line})
			start = next
		}
		pos = next
	}
	if len(all) > 0 {
		all[len(all)-1].text = text[start:]
	}
	return all
}

// value returns the string that the entry holds on its line.
func (e entry) value() (string, bool) {
	text := e.rest
	if len(text) == 0 {
		return "", false
	}
	if text[0] == '"' || text[0] == '\'' {
		inside, after, closed := bytes.Cut(text[1:], text[:1])
		rest := bytes.TrimLeft(after, " ")
		commented := len(rest) > 0 && rest[0] == '#' && len(rest) < len(after)
		return string(inside), closed && (len(rest) == 0 || commented) && bytes.IndexByte(inside, '\\') < 0
	}
	text, _, _ = bytes.Cut(text, []byte(" #"))
	text = bytes.TrimRight(text, " ")
	return string(text), text[0] != '#' && isPlainString(text)
}

func isItem(row []byte) bool { return row[0] == '-' && (len(row) == 1 || row[1] == ' ') }

// isPlainString reports whether text without quotes can only be a string.
func isPlainString(text []byte) bool {
	if bytes.Contains(text, []byte(": ")) || text[len(text)-1] == ':' {
		return false
	}
	switch c := text[0]; {
	case isLetter(c):
		return !isReservedWord(string(text))
	case c < '0' || c > '9':
		return c == '/' || c >= utf8.RuneSelf
	}
	// Numbers and dates have many forms, but none has two dots, two colons in a row, one
	// of these letters, or two dashes of which the first does not follow a year.
	return bytes.Count(text, []byte(".")) > 1 || bytes.Contains(text, []byte("::")) ||
		bytes.ContainsAny(text, "/ghijklmnqrstuvwyzGHIJKLMNQRSUVWY") || text[0] != '0' && bytes.ContainsAny(text, "acdfACDF") ||
		bytes.Count(text, []byte("-")) > 1 && bytes.IndexByte(text, '-') != 4
}

// keyLength returns the length of the plain key at the start of row, or 0.
func keyLength(row []byte) int {
	n := bytes.IndexByte(row, ':')
	if n <= 0 || n > maxKey || n+1 < len(row) && row[n+1] != ' ' || !isLetter(row[0]) || isReservedWord(string(row[:n])) {
		return 0
	}
	for _, c := range row[:n] {
		if !isLetter(c) && (c < '0' || c > '9') && !strings.ContainsRune("._/-", rune(c)) {
			return 0
		}
	}
	return n
}

// maxKey bounds a key. YAML's own limit is 1024 characters: https://yaml.org/spec/1.1/.
const maxKey = 500

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// isReservedWord reports whether a plain scalar may mean something else than its letters.
func isReservedWord(s string) bool {
	if len(s) > 5 {
		return false
	}
	switch strings.ToLower(s) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null":
		return true
	}
	return false
}

// blockItems calls each for the items of a block sequence, until each returns false. It
// returns false if text is none. The text of an item has a space instead of its dash.
func blockItems(text []byte, each func(item []byte, line int) bool) bool {
	margin, start, first := -1, 0, 0
	pos := 0
	end := func() bool {
		item := bytes.Clone(text[start:pos])
		if i := bytes.IndexByte(item, '-'); i >= 0 {
			item[i] = ' '
		}
		return each(item, first)
	}
	for line := 0; pos < len(text); line++ {
		row, _, _ := bytes.Cut(text[pos:], []byte("\n"))
		trimmed := bytes.TrimLeft(row, " ")
		indent := len(row) - len(trimmed)
		if len(trimmed) > 0 && trimmed[0] != '#' && (margin < 0 || indent == margin && isItem(trimmed)) {
			if margin < 0 && !isItem(trimmed) {
				return false
			}
			if margin >= 0 && !end() {
				return true
			}
			margin, start, first = indent, pos, line
		}
		pos = min(pos+len(row)+1, len(text))
	}
	if margin >= 0 {
		end()
	}
	return true
}

var errCutOff = errors.New("the JSON ends in the middle of a value")

// jsonEnd returns where the JSON value ends that text starts with. It looks at the
// structure alone, which takes a fraction of the time of a parser.
func jsonEnd(text []byte) (int, error) {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			n, err := stringEnd(text[i:])
			if err != nil {
				return 0, err
			}
			i += n - 1
		case '{', '[':
			depth++
			continue
		case '}', ']':
			depth--
		case '\n':
			if depth == 0 {
				return i, nil
			}
			for i+1 < len(text) && text[i+1] == ' ' { // indentation is half of what kubectl prints
				i++
			}
			continue
		case ' ', '\t', '\r', ',', ':':
			if depth == 0 {
				return i, nil
			}
			continue
		default:
			if depth == 0 && i+1 < len(text) && bytes.IndexByte([]byte(" \t\n\r,:}]"), text[i+1]) < 0 {
				continue
			}
		}
		if depth <= 0 {
			return i + 1, nil
		}
	}
	return 0, errCutOff
}

// stringEnd returns where the JSON string ends that text starts with.
func stringEnd(text []byte) (int, error) {
	for i := 1; i < len(text); i++ {
		n := bytes.IndexByte(text[i:], '"')
		if n < 0 {
			break
		}
		i += n
		if escapes := len(text[:i]) - len(bytes.TrimRight(text[:i], `\`)); escapes%2 == 0 {
			return i + 1, nil
		}
	}
	return 0, errCutOff
}

// jsonItems calls each with the values of a JSON object, with keys, or array, until it is false.
func jsonItems(text []byte, each func(key string, value []byte, at int) bool) error {
	end := byte(']')
	if text[0] == '{' {
		end = '}'
	}
	i := 1 + spaces(text[1:])
	for empty := true; i < len(text); empty = false {
		if empty && text[i] == end {
			return nil
		}
		key := ""
		if end == '}' {
			n, err := jsonEnd(text[i:])
			if err != nil {
				return err
			}
			key = string(bytes.Trim(text[i:i+n], `"`))
			i += n
			i += spaces(text[i:])
			if i >= len(text) || text[i] != ':' {
				return errors.New("the JSON has a key without a value")
			}
			i += 1 + spaces(text[i+1:])
		}
		n, err := jsonEnd(text[i:])
		switch {
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("the JSON has %q where a value should be", text[i])
		case !each(key, text[i:i+n], i):
			return nil
		}
		i += n
		switch i += spaces(text[i:]); {
		case i < len(text) && text[i] == end:
			return nil
		case i < len(text) && text[i] != ',':
			return fmt.Errorf("the JSON has %q where a comma should be", text[i])
		}
		i++
		i += spaces(text[min(i, len(text)):])
	}
	return errCutOff
}

// spaces returns how many spaces and line breaks text starts with.
func spaces(text []byte) int { return len(text) - len(bytes.TrimLeft(text, " \t\r\n")) }

// Limits of a file, so that time and memory are in proportion to its size.
const (
	// maxProblems is how many problems of a file are described. The others are counted.
	maxProblems = 20
	// maxRejected is how many objects of a file may be rejected before the rest of the
	// file is ignored as not being a manifest.
	maxRejected = 1000
	// maxObjects is how many objects a file may contain, including ignored ones.
	maxObjects = 100_000
	// maxTree bounds the memory that the library takes to parse an object in YAML. It takes
	// up to 70 times the size of some texts.
	maxTree = 36 << 20
	// maxObject is the size of the largest object. That is etcd's limit for a request, so
	// API servers take no larger ones: https://etcd.io/docs/v3.5/dev-guide/limit/.
	maxObject = 3 << 19
	// maxAnchored is the size of the largest document with aliases.
	maxAnchored = 128 << 10
)

// costs counts what was spent on a file.
type costs struct {
	over int    // values beyond what so many bytes may have
	cut  []byte // to be used again for the next object
}

// treeSize estimates the memory that the library takes to parse text.
func treeSize(text []byte) int {
	const perByte, perNode = 4, 140
	nodes := 0
	for i, c := range text {
		ends := i+1 == len(text) || text[i+1] == ' ' || text[i+1] == '\n'
		switch {
		case c == ',', c == '[', c == '{', c == '-' && ends:
			nodes++
		case c == ':' && ends: // a key and a value
			nodes += 2
		}
	}
	return perByte*len(text) + perNode*nodes
}

// countObject counts an object of any kind.
func (d *decoded) countObject() {
	if d.counted++; d.counted > maxObjects {
		d.tooMuch = fmt.Errorf("more than %d objects; want several files", maxObjects)
	}
}

// reject records an object that cannot be used. Only the first few are described.
func (d *decoded) reject(k key, describe func() rejection) {
	if d.rejectedCount++; d.rejectedCount > maxRejected {
		d.tooMuch = fmt.Errorf("more than %d objects in it cannot be used, so none is; want Kubernetes objects", maxRejected)
		return
	}
	if k.kind == "" {
		d.unnamed++
	}
	if len(d.rejected) < maxProblems {
		d.rejected = append(d.rejected, describe())
	} else if k.kind != "" {
		d.undescribed = append(d.undescribed, k)
	}
}

// dense refuses an object that is too large or, beyond what a file may have of such, has far more
// values than text: even an empty value takes a hundred bytes.
func (c *costs) dense(text []byte) error {
	if len(text) > maxObject {
		return fmt.Errorf("the object has %d bytes; want at most %d, as an API server does", len(text), maxObject)
	}
	const spare, perValue = 10_000, 16
	n := bytes.Count(text, []byte(","))
	over := max(0, n-len(text)/perValue)
	if c.over+over > spare {
		return fmt.Errorf("the object has %d values in %d bytes; want no long lists of empty values", n, len(text))
	}
	c.over += over
	return nil
}

// compact frees what a decoder allocated in advance for longer lists. A cluster has tens
// of thousands of endpoints with one address each.
func compact(value any) {
	s, is := value.(*discoveryv1.EndpointSlice)
	if !is {
		return
	}
	s.Endpoints = exact(s.Endpoints)
	for i := range s.Endpoints {
		s.Endpoints[i].Addresses = exact(s.Endpoints[i].Addresses)
	}
}

func exact[T any](list []T) []T {
	if len(list) == 0 || cap(list) == len(list) {
		return list
	}
	fresh := make([]T, len(list))
	copy(fresh, list)
	return fresh
}

// hasAliases reports whether text is YAML with aliases, and short enough for them.
func hasAliases(text []byte) bool {
	if len(text) > maxAnchored || bytes.IndexByte(text, '&') < 0 || bytes.IndexByte(text, '*') < 0 {
		return false
	}
	var root yamlv3.Node
	return yamlv3.Unmarshal(text, &root) == nil && anyAlias(&root)
}

func anyAlias(n *yamlv3.Node) bool {
	return n.Kind == yamlv3.AliasNode || slices.ContainsFunc(n.Content, anyAlias)
}

// checkAliases refuses YAML in which aliases stand for much more than is written.
func checkAliases(text []byte) error {
	if bytes.IndexByte(text, '&') < 0 || bytes.IndexByte(text, '*') < 0 {
		return nil
	}
	var root yamlv3.Node
	if yamlv3.Unmarshal(text, &root) != nil || !anyAlias(&root) {
		return nil // the library reports it
	}
	if len(text) > maxAnchored {
		return fmt.Errorf("aliases in a document of %d bytes; want at most %d, or what they stand for written out", len(text), maxAnchored)
	}
	limit := 10*len(text) + maxAnchored
	if expandedSize(&root, map[*yamlv3.Node]int{}, limit) >= limit {
		return fmt.Errorf("aliases stand for more than %d bytes in a document of %d; want that written out", limit, len(text))
	}
	return nil
}

// expandedSize returns the size of n with its aliases expanded, limit at most, in one visit.
func expandedSize(n *yamlv3.Node, known map[*yamlv3.Node]int, limit int) int {
	if size, ok := known[n]; ok {
		return size
	}
	known[n] = limit // a node within itself has no finite size
	size := 8 + len(n.Value)
	if n.Kind == yamlv3.AliasNode {
		size = expandedSize(n.Alias, known, limit)
	}
	for _, child := range n.Content {
		size = min(size+expandedSize(child, known, limit), limit)
	}
	known[n] = min(size, limit)
	return known[n]
}
