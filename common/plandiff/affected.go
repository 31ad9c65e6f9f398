// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package plandiff

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// portName finds the name of a Service port in a line of a plan or of rules: in a comment,
// or behind what the line is about. A name that is too long for a comment ends with dots.
var portName = regexp.MustCompile(`(?:^[-+~] |"|# |listener of )([a-z0-9-]+/[a-z0-9-]+(?::[a-z0-9-]*)?)(\.\.\.)?(?:"|$| \()`)

// affects adds the names of Service ports in these lines to those that are affected.
func (d *Difference) affects(lines ...string) {
	for _, line := range lines {
		for _, m := range portName.FindAllStringSubmatch(line, -1) {
			if m[2] == "" {
				d.Affected = append(d.Affected, m[1])
			} else {
				d.Affected = append(d.Affected, d.completions(m[1])...)
			}
		}
	}
	slices.Sort(d.Affected)
	d.Affected = slices.Compact(d.Affected)
}

// Knows makes the ports of s known, whose names may stand in a plan or in rules.
func (d *Difference) Knows(s *service.Snapshot) {
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			d.known = append(d.known, p.Name)
		}
	}
}

// completions returns the known names that begin with a cut one.
func (d *Difference) completions(cut string) []string {
	var all []string
	for _, n := range d.known {
		if name := n.String(); strings.HasPrefix(name, cut) {
			all = append(all, name)
		}
	}
	return all
}

// changedLines returns the lines of a unified diff that differ.
func changedLines(text string) []string {
	var all []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "+") || strings.HasPrefix(line, "-") {
			all = append(all, strings.TrimSuffix(line, "\n"))
		}
	}
	return all
}

// mostNames bounds the names in one sentence.
const mostNames = 5

// affectedText continues a sentence with the Service ports that are affected.
func (d *Difference) affectedText() string {
	names := d.Affected
	switch n := len(names); {
	case n == 0:
		return ""
	case n == 1:
		return ", for Service port " + names[0]
	case n > mostNames+1:
		return fmt.Sprintf(", for Service ports %s and %d others", strings.Join(names[:mostNames], ", "), n-mostNames)
	default:
		return fmt.Sprintf(", for Service ports %s and %s", strings.Join(names[:n-1], ", "), names[n-1])
	}
}
