// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// document is the file with a section for each part. A run replaces the sections that it
// has measured and keeps the others unchanged.
type document struct {
	path     string
	sections map[string]string // by title
}

const (
	documentHead = "# Benchmarks\n"
	fence        = "```"
)

// openDocument reads the results of earlier runs, and refuses a file of another origin.
func openDocument(path string) (*document, error) {
	d := &document{path: path, sections: map[string]string{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	if len(text) > 0 && !strings.HasPrefix(string(text), documentHead) {
		return nil, fmt.Errorf("document %s: begins with something else than %q, so the bench has not written it", path, strings.TrimSpace(documentHead))
	}
	all := strings.Split(string(text), "\n## ")
	for _, section := range all[1:] {
		title, _, _ := strings.Cut(section, "\n")
		if !slices.ContainsFunc(parts, func(p part) bool { return p.title == title }) {
			return nil, fmt.Errorf("document %s: section %q is of no part that is measured (%s) and would be lost: move it elsewhere", path, title, partNames())
		}
		d.sections[title] = "## " + strings.TrimSpace(section) + "\n"
	}
	return d, nil
}

// put replaces a section and writes the file.
func (d *document) put(s *section) error {
	d.sections[s.title] = s.text()
	return d.write()
}

func (d *document) write() error {
	if err := os.WriteFile(d.path, []byte(d.text()), 0o644); err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	return nil
}

const documentIntro = documentHead + `
` + "`make bench`" + ` measures and writes this file, and ` + "`make bench PART=served`" + ` one part of it. Rows without an aim are printed while it
runs; the file has few of them. The bench itself brings the load (an average over a minute) to about 1, an API server or
another proxy to about 2. A higher load makes times longer, mostly the p99; CPU time and ratios bear it.
`

// text is the whole file.
func (d *document) text() string {
	var met, missed int
	var b strings.Builder
	for _, p := range parts {
		text, ok := d.sections[p.title]
		if !ok {
			continue
		}
		m, n := aims(text)
		met, missed = met+m, missed+n
		b.WriteString("\n" + text)
	}
	return fmt.Sprintf("%s\n**%d aims met, %d missed.**\n%s", documentIntro, met, missed, b.String())
}

// aims counts the aims in the tables of a section, of any run.
func aims(text string) (met, missed int) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for cell := range strings.SplitSeq(line, "|") {
			switch strings.TrimSpace(cell) {
			case aimMet:
				met++
			case aimMissed:
				missed++
			}
		}
	}
	return met, missed
}
