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

	"kubeproxy/test/kit"
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
` + "`make bench`" + ` measures and writes this file, and ` + "`make bench PART=served`" + ` one part of it. So each section tells when and
where it was measured, and with what load (an average over a minute). The bench itself brings it to about 1, an API
server or another proxy to about 2. A higher load makes times longer, mostly the p99; CPU time and ratios bear it.
`

// text is the whole file.
func (d *document) text() string {
	cells := [][]string{{"part", "measured", "load at most", "aims met", "missed"}}
	var all overview
	var b strings.Builder
	for _, p := range parts {
		text, ok := d.sections[p.title]
		if !ok {
			continue
		}
		o := overviewOf(text)
		all.met, all.missed = all.met+o.met, all.missed+o.missed
		cells = append(cells, []string{p.name, o.date, o.during, fmt.Sprint(o.met), fmt.Sprint(o.missed)})
		b.WriteString("\n" + text)
	}
	return fmt.Sprintf("%s\n**%d aims met, %d missed.**\n\n%s%s", documentIntro, all.met, all.missed, kit.Numbers(cells), b.String())
}

// overview is the summary of a section.
type overview struct {
	date, before, during, took string
	met, missed                int
}

// overviewOf parses a section's text, of any run.
func overviewOf(text string) overview {
	var o overview
	fences := 0 // the facts are between the first two
	for line := range strings.Lines(text) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(word, "|") {
			o.count(rest)
		}
		if word == fence {
			fences++
		}
		if fences != 1 {
			continue
		}
		switch word {
		case "date":
			o.date = rest
		case "load":
			o.before, o.during, _ = strings.Cut(rest, " before, at most ")
		case "took":
			o.took = rest
		}
	}
	return o
}

// count counts the row of a table.
func (o *overview) count(row string) {
	for cell := range strings.SplitSeq(row, "|") {
		switch strings.TrimSpace(cell) {
		case aimMet:
			o.met++
		case aimMissed:
			o.missed++
		}
	}
}

// String is the last line about a part.
func (o overview) String() string {
	return fmt.Sprintf("%d aims met, %d missed. Load average (1 min) %s before, at most %s during. Took %s.",
		o.met, o.missed, o.before, o.during, o.took)
}
