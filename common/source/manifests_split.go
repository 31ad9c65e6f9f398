// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// document is one YAML or JSON document of a file.
type document struct {
	line int // where it starts, from 1
	text []byte
	json bool
}

// startsAsJSON reports whether content may be JSON throughout, whatever the name of the
// file. It may contain several objects.
func startsAsJSON(content []byte) bool {
	trimmed := bytes.TrimLeft(content, " \t\r\n")
	return len(trimmed) > 0 && trimmed[0] == '{'
}

// jsonDocuments calls each for one object after another, until each returns false. It
// returns an error if content is not JSON.
func jsonDocuments(content []byte, each func(document) bool) error {
	d := json.NewDecoder(bytes.NewReader(content))
	line, at := 1, int64(0)
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		start := d.InputOffset() - int64(len(raw))
		line += bytes.Count(content[at:start], []byte("\n"))
		at = start
		if !each(document{line, raw, true}) {
			return nil
		}
	}
}

// yamlDocuments splits content at document markers and calls each for one document after
// another, until each returns false. YAML reserves the markers at the start of a line,
// even within a block scalar: https://yaml.org/spec/1.1/.
func yamlDocuments(content []byte, each func(document) bool) {
	first, start := 1, 0 // of the document at hand
	line, pos := 1, 0
	more := true
	end := func(next, nextLine int) {
		if text := content[start:pos]; more && len(bytes.TrimSpace(text)) > 0 {
			lead := len(text) - len(bytes.TrimLeft(text, "\r\n"))
			more = each(document{line: first + bytes.Count(text[:lead], []byte("\n")), text: text[lead:]})
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
	return ok && (len(rest) == 0 || bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0])))
}

// wrap adds the position in the file to err.
func (d document) wrap(err error) error {
	return fmt.Errorf("%s: %w", d.position(), err)
}

// position returns where in the file the document is.
func (d document) position() string {
	return fmt.Sprintf("document at line %d", d.line)
}
