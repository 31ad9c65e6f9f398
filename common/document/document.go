// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package document writes what commands print for people and programs: a value as indented
// JSON, or the text that stands for it, with tables of at most Width columns, whose long
// cells are wrapped and never cut.
package document

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"kubeproxy/common/printable"
)

// Format is how a document is printed.
type Format string

// The formats. Text is what the commands of the system take.
const (
	Text Format = "text"
	JSON Format = "json"
)

// Check returns an error that names the formats there are if f is none of them.
func (f Format) Check() error {
	if f != Text && f != JSON {
		return fmt.Errorf("%q is unknown: want %s or %s", f, Text, JSON)
	}
	return nil
}

// Write writes value as JSON, or what text prints.
func (f Format) Write(w io.Writer, value any, text func(*bufio.Writer)) error {
	if err := f.Check(); err != nil {
		return fmt.Errorf("format %w", err)
	}
	if f == JSON {
		return WriteJSON(w, value)
	}
	b := bufio.NewWriter(w)
	text(b)
	return b.Flush()
}

// WriteJSON writes value as indented JSON, in which <, > and & are escaped.
func WriteJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

// WriteReadable is WriteJSON for a terminal: <, > and & stay, and foreign text cannot
// control the terminal.
func WriteReadable(w io.Writer, value any) error {
	e := json.NewEncoder(printable.Writer(w))
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(value)
}
