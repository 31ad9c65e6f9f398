// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"encoding/json"
	"slices"
)

// Severity is how much a Finding matters.
type Severity string

// The severities, worst first.
const (
	Blocks Severity = "blocks" // the proxy does not start, or traffic is lost
	Risk   Severity = "risk"   // some traffic is lost, or will be
)

// Finding is something that needs attention. After its Fix has run, it is not found
// again.
type Finding struct {
	Topic Topic
	// Subject is the object that the Finding is about, such as a setting or a port. It
	// distinguishes Findings of one Topic.
	Subject string
	// Mode is the mode that it concerns, empty for every mode.
	Mode string
	// Severity is that of the Topic if it is empty.
	Severity Severity
	// What is one sentence without a full stop.
	What string
	// Fix is a command for a shell of the node, empty if no command corrects it.
	Fix string
	// Advice is what to do if there is no Fix, or what to know before it is run.
	Advice string
}

// severity returns how much f matters.
func (f *Finding) severity() Severity { return cmp.Or(f.Severity, topics[f.Topic].severity) }

// MarshalJSON implements json.Marshaler. New versions may add fields, but must not rename
// or remove any.
func (f Finding) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		ID       Topic    `json:"id"`
		Subject  string   `json:"subject,omitempty"`
		Mode     string   `json:"mode,omitempty"`
		Severity Severity `json:"severity"`
		What     string   `json:"what"`
		Why      string   `json:"why"`
		Fix      string   `json:"fix,omitempty"`
		Advice   string   `json:"advice,omitempty"`
		Link     string   `json:"link"`
	}{f.Topic, f.Subject, f.Mode, f.severity(), f.What, f.Topic.Why(), f.Fix, f.Advice, f.Topic.Link()})
}

// sorted returns findings in the order of printing: by severity, then by Topic and
// Subject. Of several about the same Subject, the first stays.
func sorted(all []Finding) []Finding {
	type key struct {
		topic         Topic
		subject, mode string
	}
	seen := map[key]bool{}
	kept := []Finding{}
	for _, f := range all {
		k := key{f.Topic, f.Subject, f.Mode}
		if !seen[k] {
			seen[k] = true
			kept = append(kept, f)
		}
	}
	slices.SortStableFunc(kept, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.severity(), b.severity()), cmp.Compare(topics[a.Topic].order, topics[b.Topic].order),
			cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.Subject, b.Subject))
	})
	return kept
}
