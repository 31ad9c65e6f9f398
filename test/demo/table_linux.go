// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"kubeproxy/test/netlab"
)

// group is a part of the table of expectations.
type group struct {
	title string
	rows  []row
}

// row is one line of the table: a client, an address of a Service in both
// families, and what must come of connecting.
type row struct {
	from, kind, service string
	to                  [2]netip.AddrPort // IPv4, IPv6
	proto               string
	outcome             netlab.Outcome
	backends            []string // those that must answer
	sticky              bool     // only one of them, always the same
	seen                string   // whose address they see; "-" if none answers
}

// readTable reads expectations in the form explained at the head of the file.
func readTable(file string) ([]group, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("open table of expectations: %w", err)
	}
	defer f.Close()
	var groups []group
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		title, isTitle := strings.CutPrefix(line, "[")
		switch {
		case line == "" || line[0] == '#':
		case isTitle:
			groups = append(groups, group{title: strings.TrimSuffix(title, "]")})
		case groups == nil:
			return nil, fmt.Errorf("%s:%d: a row before the first [title]", file, n)
		default:
			r, err := parseRow(line)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, n, err)
			}
			g := &groups[len(groups)-1]
			g.rows = append(g.rows, r)
		}
	}
	return groups, lines.Err()
}

func parseRow(line string) (row, error) {
	f := strings.Fields(line)
	if len(f) != 8 {
		return row{}, fmt.Errorf("%d columns, want 8", len(f))
	}
	r := row{from: f[0], kind: f[1], service: f[2], proto: f[5], seen: f[7]}
	for i := range r.to {
		to, err := netip.ParseAddrPort(f[3+i])
		if err != nil {
			return row{}, fmt.Errorf("address %q: %w", f[3+i], err)
		}
		r.to[i] = to
	}
	names, sticky := strings.CutPrefix(f[6], "one-of:")
	switch names {
	case "refused":
		r.outcome = netlab.Refused
	case "dropped":
		r.outcome = netlab.TimedOut
	default:
		r.backends, r.sticky = strings.Split(names, ","), sticky
	}
	if (r.seen == "-") != (r.backends == nil) {
		return row{}, fmt.Errorf("answered by %s but seen as %s", names, r.seen)
	}
	return r, nil
}
