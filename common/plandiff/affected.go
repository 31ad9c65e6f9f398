// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package plandiff

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// portName finds the name of a Service port in a line of a plan or of rules: in a comment,
// or behind what the line is about.
var portName = regexp.MustCompile(`(?:^[-+~] |"|# |listener of )([a-z0-9-]+/[a-z0-9-]+(?::[a-z0-9-]+)?)(?:"|$| \()`)

// affects adds the names of Service ports in these lines to those that are affected.
func (d *Difference) affects(lines ...string) {
	for _, line := range lines {
		for _, m := range portName.FindAllStringSubmatch(line, -1) {
			d.Affected = append(d.Affected, m[1])
		}
	}
	slices.Sort(d.Affected)
	d.Affected = slices.Compact(d.Affected)
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
