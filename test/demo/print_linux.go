// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// printer writes for people, in colour where that is welcome.
type printer struct {
	to     io.Writer
	colour bool
}

func stdout() *printer {
	_, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	terminal := err == nil && os.Getenv("TERM") != "dumb"
	return &printer{to: os.Stdout, colour: terminal && os.Getenv("NO_COLOR") == ""}
}

func (p *printer) paint(code, text string) string {
	if !p.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p *printer) good(text string) string { return p.paint("32", text) }
func (p *printer) bad(text string) string  { return p.paint("1;31", text) }

func (p *printer) heading(text string) {
	fmt.Fprintf(p.to, "\n%s\n", p.paint("1", text))
}

func (p *printer) line(format string, args ...any) {
	fmt.Fprintf(p.to, format+"\n", args...)
}

// table prints rows in aligned columns. Colours may stand in the last column
// only, where they do not count as width.
func (p *printer) table(rows [][]string) {
	w := tabwriter.NewWriter(p.to, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t"))
	}
	w.Flush()
}

// log prints the end of the proxy's log.
func (p *printer) log(file string) {
	const most = 40
	text, err := os.ReadFile(file)
	if err != nil {
		return // the proxy was not started
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	p.heading("The proxy's log")
	if n := len(lines) - most; n > 0 {
		p.line("  (%d lines before)", n)
		lines = lines[n:]
	}
	for _, line := range lines {
		p.line("  %s", line)
	}
}
