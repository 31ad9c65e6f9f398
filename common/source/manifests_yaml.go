// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// plainYAML converts the YAML that people and tools write for Kubernetes to JSON, in one
// pass: block mappings and sequences, scalars on one line, literal blocks, and flow
// collections on one line, in UTF-8 with keys in ASCII. For all other text, correct or
// not, it returns errNotPlain, and the library parses it. The library builds a tree of 70
// bytes for each byte of some texts, and takes ten times as long for any. The result is
// in buffer if that is large enough.
func plainYAML(text, buffer []byte) ([]byte, error) {
	if bytes.IndexByte(text, '\r') >= 0 {
		text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	}
	if !isPlainText(text) {
		return nil, errNotPlain
	}
	p := &plainParser{text: text, out: buffer[:0]}
	p.next()
	if p.ended {
		return []byte("null"), nil
	}
	if p.indent != 0 {
		return nil, errNotPlain
	}
	if err := p.block(0); err != nil {
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
	text   []byte // after the present line
	indent int
	row    []byte // without indentation
	ended  bool
	depth  int
	out    []byte
}

// next moves to the next line that is neither empty nor a comment.
func (p *plainParser) next() {
	for len(p.text) > 0 {
		row, rest, _ := bytes.Cut(p.text, []byte("\n"))
		p.text = rest
		trimmed := bytes.TrimLeft(row, " ")
		if len(trimmed) == 0 || trimmed[0] == '#' {
			continue
		}
		p.indent, p.row = len(row)-len(trimmed), trimmed
		return
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
	case p.row[0] == '{':
		return p.value(p.row, indent, true)
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
		rest := bytes.TrimLeft(p.row[n+1:], " ")
		if len(rest) > 0 && rest[0] == '|' {
			if err := p.literal(string(bytes.TrimRight(rest, " ")), indent); err != nil {
				return err
			}
			continue
		}
		if err := p.value(rest, indent, false); err != nil {
			return err
		}
	}
	p.out = append(p.out, '}')
	if p.indent > indent || p.indent == indent && p.depth == 1 {
		return errNotPlain
	}
	return nil
}

// value parses what follows a key or a dash, on its line or the next ones, and moves to
// the line after it.
func (p *plainParser) value(rest []byte, indent int, inItem bool) error {
	if len(rest) == 0 || rest[0] == '#' {
		p.next()
		switch {
		case p.indent > indent:
			return p.block(p.indent)
		case p.indent == indent && isItem(p.row) && !inItem:
			return p.block(indent)
		}
		p.out = append(p.out, "null"...)
		return nil
	}
	left, err := p.scalar(rest, "")
	if err != nil {
		return err
	}
	if left = bytes.TrimLeft(left, " "); len(left) > 0 && left[0] != '#' {
		return errNotPlain
	}
	p.next()
	if p.indent > indent {
		return errNotPlain // the scalar continues
	}
	return nil
}

// literal parses a literal block scalar.
func (p *plainParser) literal(head string, indent int) error {
	if head != "|" && head != "|-" {
		return errNotPlain
	}
	margin := 0
	var lines [][]byte
	for len(p.text) > 0 {
		row, rest, ended := bytes.Cut(p.text, []byte("\n"))
		trimmed := bytes.TrimLeft(row, " ")
		if !ended {
			return errNotPlain
		}
		if len(trimmed) == 0 && (len(row) > 0 || margin == 0) {
			return errNotPlain // the meaning depends on what follows
		}
		if len(trimmed) > 0 && margin == 0 {
			margin = len(row) - len(trimmed)
			if margin <= indent {
				return errNotPlain
			}
		}
		if len(trimmed) > 0 && len(row)-len(trimmed) < margin {
			break
		}
		lines = append(lines, row[min(margin, len(row)):])
		p.text = rest
	}
	for len(lines) > 0 && len(lines[len(lines)-1]) == 0 {
		lines = lines[:len(lines)-1]
	}
	if len(lines) == 0 {
		return errNotPlain
	}
	p.out = append(p.out, '"')
	for i, l := range lines {
		if i > 0 {
			p.out = append(p.out, `\n`...)
		}
		p.quote(l)
	}
	if head == "|" {
		p.out = append(p.out, `\n`...)
	}
	p.out = append(p.out, '"')
	p.next()
	if p.indent > indent {
		return errNotPlain
	}
	return nil
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
