// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

// scalar parses the scalar or flow collection at the start of row and returns the rest. A
// plain scalar ends at the end of the line or at one of the characters in ends, which are
// those of an enclosing flow collection.
func (p *plainParser) scalar(row []byte, ends string) (left []byte, err error) {
	switch c := row[0]; {
	case c == '{' || c == '[':
		return p.flow(row)
	case c == '"' || c == '\'':
		return p.quoted(row, ends)
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

// quoted parses a quoted scalar. One that contains its own kind of quote is not plain.
// The accepted escapes are those that mean the same in JSON, and \U, which the library
// writes.
func (p *plainParser) quoted(row []byte, ends string) (left []byte, err error) {
	n := bytes.IndexByte(row[1:], row[0])
	if n < 0 {
		return nil, errNotPlain
	}
	text, left := row[1:n+1], row[n+2:]
	if len(left) > 0 && left[0] != ' ' && !strings.ContainsRune(ends, rune(left[0])) {
		return nil, errNotPlain
	}
	p.out = append(p.out, '"')
	if row[0] == '\'' {
		p.quote(text)
	} else if err := p.escaped(text); err != nil {
		return nil, err
	}
	p.out = append(p.out, '"')
	return left, nil
}

// escaped writes the content of double quotes.
func (p *plainParser) escaped(text []byte) error {
	for {
		n := bytes.IndexByte(text, '\\')
		if n < 0 {
			p.out = append(p.out, text...)
			return nil
		}
		p.out = append(p.out, text[:n]...)
		if text = text[n:]; len(text) < 2 {
			return errNotPlain
		}
		length := 2
		switch text[1] {
		case 'n', 't', '\\':
			p.out = append(p.out, text[:length]...)
		case 'u', 'U':
			if length = 6; text[1] == 'U' {
				length = 10
			}
			if len(text) < length {
				return errNotPlain
			}
			r, err := strconv.ParseUint(string(text[2:length]), 16, 32)
			if err != nil || r < 0xa0 || !utf8.ValidRune(rune(r)) {
				return errNotPlain
			}
			p.out = utf8.AppendRune(p.out, rune(r))
		default:
			return errNotPlain
		}
		text = text[length:]
	}
}

// plain writes a plain scalar.
func (p *plainParser) plain(text []byte) error {
	if len(text) == 0 || bytes.Contains(text, []byte(": ")) || text[len(text)-1] == ':' {
		return errNotPlain
	}
	switch c := text[0]; {
	case isLetter(c):
		if isReservedWord(string(text)) {
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
		// Numbers have many forms, but none has two dots or one of these letters.
		if bytes.Count(text, []byte(".")) < 2 && !bytes.ContainsAny(text, "/ghijklmnqrstuvwyzGHIJKLMNQRSUVWY") &&
			!bytes.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) {
			return errNotPlain
		}
	case c != '/' && c < utf8.RuneSelf:
		return errNotPlain
	}
	p.out = append(p.out, '"')
	p.quote(text)
	p.out = append(p.out, '"')
	return nil
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

// quote writes text as part of a JSON string.
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

// flowKey parses a key in braces and returns the rest.
func (p *plainParser) flowKey(row []byte, keys *keySet) ([]byte, error) {
	n := keyLength(row)
	if n == 0 || !keys.add(string(row[:n])) {
		return nil, errNotPlain
	}
	p.out = append(append(append(p.out, '"'), row[:n]...), '"', ':')
	return bytes.TrimLeft(row[n+1:], " "), nil
}
