// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// plainYAML converts the block style that kubectl and people write to JSON, in one pass.
// It parses mappings, sequences and the most frequent scalars itself, and leaves each
// other value to the library, such as text over lines and flow style. For all other text,
// correct or not, it returns errNotPlain, and the library parses all of it. The library
// takes ten times as long, and builds a tree of 70 bytes for each byte of some texts. The
// result is in buffer if that is large enough. Values of keys in instead are replaced.
func plainYAML(text, buffer []byte, instead map[string]string) ([]byte, error) {
	if !isPlainText(text) {
		return nil, errNotPlain
	}
	p := &plainParser{text: text, out: buffer[:0], instead: instead, budget: len(text) + 2048}
	p.next()
	if p.ended {
		return []byte("null"), nil
	}
	if err := p.block(p.indent); err != nil {
		return nil, err
	}
	if !p.ended {
		return nil, errNotPlain
	}
	return p.out, nil
}

// isPlainText reports whether text is printable and has no line breaks other than \n.
// YAML 1.1 also has NEL, LS and PS: https://yaml.org/spec/1.1/.
func isPlainText(text []byte) bool {
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if c == 0x7f || c < ' ' && c != '\n' {
				return false
			}
			i++
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 || !isPlainRune(r) {
			return false
		}
		i += n
	}
	return true
}

// isPlainRune reports whether YAML allows r unescaped. r is not ASCII.
func isPlainRune(r rune) bool {
	switch r {
	case '\u2028', '\u2029', '\ufeff', '\ufffe', '\uffff':
		return false
	}
	return r >= 0xa0
}

var errNotPlain = errors.New("not plain YAML")

// plainDepth bounds the nesting of collections.
const plainDepth = 64

// plainParser is at a line that is neither empty nor a comment.
type plainParser struct {
	text    []byte // after the present line
	indent  int
	row     []byte // without indentation
	ended   bool
	depth   int
	out     []byte
	instead map[string]string
	budget  int // what values may still cost that are left to the library
}

// next moves to the next line that is neither empty nor a comment.
func (p *plainParser) next() {
	for len(p.text) > 0 {
		row, rest, _ := bytes.Cut(p.text, []byte("\n"))
		p.text = rest
		if trimmed := bytes.TrimLeft(row, " "); len(trimmed) > 0 && trimmed[0] != '#' {
			p.indent, p.row = len(row)-len(trimmed), trimmed
			return
		}
	}
	p.ended, p.indent, p.row = true, -1, nil
}

// block parses the collection that starts at the present line.
func (p *plainParser) block(indent int) error {
	p.depth++
	defer func() { p.depth-- }()
	switch {
	case p.depth > plainDepth:
		return errNotPlain
	case isItem(p.row):
		return p.sequence(indent)
	case keyLength(p.row) > 0:
		return p.mapping(indent)
	}
	return errNotPlain
}

func isItem(row []byte) bool { return row[0] == '-' && (len(row) == 1 || row[1] == ' ') }

func (p *plainParser) sequence(indent int) error {
	p.out = append(p.out, '[')
	for first := true; p.indent == indent && isItem(p.row); first = false {
		if !first {
			p.out = append(p.out, ',')
		}
		rest := bytes.TrimLeft(p.row[1:], " ")
		if len(rest) > 0 && keyLength(rest) > 0 {
			p.indent, p.row = indent+len(p.row)-len(rest), rest
			if err := p.block(p.indent); err != nil {
				return err
			}
			continue
		}
		if err := p.value(rest, indent, true); err != nil {
			return err
		}
	}
	p.out = append(p.out, ']')
	if p.indent > indent {
		return errNotPlain
	}
	return nil
}

func (p *plainParser) mapping(indent int) error {
	p.out = append(p.out, '{')
	var keys keySet
	for p.indent == indent && !isItem(p.row) {
		n := keyLength(p.row)
		if n == 0 || !keys.add(string(p.row[:n])) {
			return errNotPlain
		}
		if len(keys.few) > 1 {
			p.out = append(p.out, ',')
		}
		p.out = append(append(append(p.out, '"'), p.row[:n]...), '"', ':')
		if other, found := p.instead[string(p.row[:n])]; found {
			p.out = append(p.out, other...)
			p.skip(indent)
			continue
		}
		if err := p.value(bytes.TrimLeft(p.row[n+1:], " "), indent, false); err != nil {
			return err
		}
	}
	p.out = append(p.out, '}')
	if p.indent > indent || p.indent == indent && p.depth == 1 {
		return errNotPlain
	}
	return nil
}

// skip moves to the line after the value of the present key.
func (p *plainParser) skip(indent int) {
	for p.next(); p.indent > indent || p.indent == indent && isItem(p.row); {
		p.next()
	}
}

// value parses what follows a key or a dash, on its line or the next ones, and moves to
// the line after it.
func (p *plainParser) value(rest []byte, indent int, inItem bool) error {
	at, text := len(p.out), p.text
	if len(rest) == 0 || rest[0] == '#' {
		p.next()
		switch {
		case p.indent > indent && (isItem(p.row) || keyLength(p.row) > 0):
			return p.block(p.indent)
		case p.indent > indent:
			return p.other(nil, text, indent)
		case p.indent == indent && isItem(p.row) && !inItem:
			return p.block(indent)
		}
		p.out = append(p.out, "null"...)
		return nil
	}
	if p.scalar(rest) {
		if p.next(); p.indent <= indent {
			return nil
		}
	}
	p.out = p.out[:at]
	return p.other(rest, text, indent)
}

// other leaves a value to the library, with the lines after it that are indented.
func (p *plainParser) other(rest, after []byte, indent int) error {
	const setup = 64 // what a call of the library costs, in bytes
	chunk, end := append([]byte("k: "), rest...), "\n"
	for p.text = after; len(p.text) > 0; {
		row, rest, found := bytes.Cut(p.text, []byte("\n"))
		trimmed := bytes.TrimLeft(row, " ")
		if len(trimmed) > 0 && len(row)-len(trimmed) <= indent {
			break
		}
		chunk = append(append(chunk, end...), row[min(indent, len(row)):]...)
		if p.text = rest; !found {
			end = "" // the last line of a literal block may lack its line break
		}
	}
	if p.budget -= len(chunk) + setup; p.budget < 0 || len(chunk) > maxTree {
		return errNotPlain
	}
	got, err := yaml.YAMLToJSONStrict(append(chunk, end...))
	got, found := bytes.CutPrefix(got, []byte(`{"k":`))
	if err != nil || !found {
		return errNotPlain
	}
	p.out = append(p.out, bytes.TrimSuffix(got, []byte("}"))...)
	p.next()
	return nil
}

// scalar writes a scalar that row holds, or returns false if the library must read it.
func (p *plainParser) scalar(row []byte) bool {
	text, quoted := row, row[0] == '"' || row[0] == '\''
	switch {
	case quoted:
		n := bytes.IndexByte(row[1:], row[0])
		if n < 0 {
			return false
		}
		text = row[1 : n+1]
		rest := bytes.TrimLeft(row[n+2:], " ")
		if len(rest) > 0 && (rest[0] != '#' || len(rest) == len(row[n+2:])) || bytes.IndexByte(text, '\\') >= 0 {
			return false
		}
	default:
		if n := bytes.Index(row, []byte(" #")); n >= 0 {
			text = row[:n]
		}
		text = bytes.TrimRight(text, " ")
		if s := string(text); isDecimal(text) || s == "true" || s == "false" || s == "{}" || s == "[]" {
			p.out = append(p.out, s...)
			return true
		}
		if !isPlainString(text) {
			return false
		}
	}
	p.out = append(p.out, '"')
	for _, c := range text {
		if c == '"' || c == '\\' {
			p.out = append(p.out, '\\')
		}
		p.out = append(p.out, c)
	}
	p.out = append(p.out, '"')
	return true
}

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

// isDecimal reports whether text is a number in its simplest form.
func isDecimal(text []byte) bool {
	if len(text) > 15 || text[0] == '0' && len(text) > 1 {
		return false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
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

// isReservedWord reports whether a plain scalar may mean something other than its
// letters.
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

// keySet holds the keys of a mapping, to detect duplicates.
type keySet struct {
	few  []string
	many map[string]bool
}

// manyKeys is more keys than any valid object has in one mapping.
const manyKeys = 10_000

// add reports whether key is new and within the limit.
func (s *keySet) add(key string) bool {
	const few = 16
	if len(s.few) < few && s.many == nil {
		if slices.Contains(s.few, key) {
			return false
		}
		s.few = append(s.few, key)
		return true
	}
	if s.many == nil {
		s.many = map[string]bool{}
		for _, k := range s.few {
			s.many[k] = true
		}
	}
	if s.many[key] || len(s.many) >= manyKeys {
		return false
	}
	s.many[key] = true
	return true
}
