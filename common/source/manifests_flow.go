// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"strings"
)

// scalar parses the scalar or flow collection that row begins with, and returns
// what follows it. A plain scalar ends at one of the characters in ends, which are
// those of a flow collection around it, or with the line.
func (p *plainParser) scalar(row []byte, ends string) (left []byte, err error) {
	switch c := row[0]; {
	case c == '{' || c == '[':
		return p.flow(row)
	case c == '"' || c == '\'':
		n := bytes.IndexByte(row[1:], c)
		if n < 0 {
			return nil, errNotPlain
		}
		text, left := row[1:n+1], row[n+2:]
		if bytes.IndexByte(text, '\\') >= 0 || len(left) > 0 && left[0] != ' ' && !strings.ContainsRune(ends, rune(left[0])) {
			return nil, errNotPlain
		}
		p.out = append(p.out, '"')
		p.quote(text)
		p.out = append(p.out, '"')
		return left, nil
	}
	text := row
	if ends != "" {
		n := bytes.IndexAny(row, ends)
		if n < 0 || bytes.ContainsAny(row[:n], ":?#{}[]") {
			return nil, errNotPlain
		}
		text, left = row[:n], row[n:]
	} else if n := bytes.Index(row, []byte(" #")); n >= 0 {
		text = row[:n]
	}
	return left, p.plain(bytes.TrimRight(text, " "))
}

// plain writes a plain scalar.
func (p *plainParser) plain(text []byte) error {
	if len(text) == 0 || bytes.Contains(text, []byte(": ")) || text[len(text)-1] == ':' {
		return errNotPlain
	}
	switch c := text[0]; {
	case isLetter(c):
		if isWord(string(text)) {
			if s := string(text); s == "true" || s == "false" {
				p.out = append(p.out, s...)
				return nil
			}
			return errNotPlain
		}
	case c >= '0' && c <= '9':
		if isDecimal(text) {
			p.out = append(p.out, text...)
			return nil
		}
		// Numbers have many forms, and never two dots or such letters.
		if bytes.Count(text, []byte(".")) < 2 && !bytes.ContainsAny(text, "/ghijklmnqrstuvwyzGHIJKLMNQRSUVWY") {
			return errNotPlain
		}
	case c != '/':
		return errNotPlain
	}
	p.out = append(p.out, '"')
	p.quote(text)
	p.out = append(p.out, '"')
	return nil
}

// isDecimal reports that text is a number in its plainest form.
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

// quote writes text as it stands within a JSON string.
func (p *plainParser) quote(text []byte) {
	for _, c := range text {
		if c == '"' || c == '\\' {
			p.out = append(p.out, '\\')
		}
		p.out = append(p.out, c)
	}
}

// flow parses a mapping in braces or a sequence in brackets.
func (p *plainParser) flow(row []byte) (left []byte, err error) {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > plainDepth {
		return nil, errNotPlain
	}
	open, end := row[0], byte(']')
	if open == '{' {
		end = '}'
	}
	p.out = append(p.out, open)
	row = bytes.TrimLeft(row[1:], " ")
	var keys keySet
	for first := true; len(row) > 0 && row[0] != end; first = false {
		if !first {
			if row[0] != ',' {
				return nil, errNotPlain
			}
			p.out = append(p.out, ',')
			row = bytes.TrimLeft(row[1:], " ")
		}
		if open == '{' {
			if row, err = p.flowKey(row, &keys); err != nil {
				return nil, err
			}
		}
		if len(row) == 0 {
			return nil, errNotPlain
		}
		if row, err = p.scalar(row, ",]}"); err != nil {
			return nil, err
		}
		row = bytes.TrimLeft(row, " ")
	}
	if len(row) == 0 {
		return nil, errNotPlain
	}
	p.out = append(p.out, end)
	return row[1:], nil
}

// flowKey parses a key in braces, and returns what follows it.
func (p *plainParser) flowKey(row []byte, keys *keySet) ([]byte, error) {
	n := keyLength(row)
	if n == 0 || !keys.add(string(row[:n])) {
		return nil, errNotPlain
	}
	p.out = append(append(append(p.out, '"'), row[:n]...), '"', ':')
	return bytes.TrimLeft(row[n+1:], " "), nil
}
