// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// UnmarshalJSON implements json.Unmarshaler. What a topic of another version means becomes advice.
func (f *Finding) UnmarshalJSON(text []byte) error {
	var x findingJSON
	if err := json.Unmarshal(text, &x); err != nil {
		return err
	}
	*f = Finding{Topic: x.ID, Subject: x.Subject, Mode: x.Mode, Severity: x.Severity, What: x.What, Fix: x.Fix, Advice: x.Advice, Cause: x.Cause}
	if _, known := topics[f.Topic]; !known {
		f.Advice = strings.Trim(x.Why+"; "+x.Advice, "; ")
	}
	return nil
}

// Merge puts the reports of nodes together: each check with its worst result, and equal findings
// once, with the nodes that have them.
func Merge(all []*Report) *Report {
	r := &Report{Node: share(len(all), len(all), nil)}
	var systems, proxies []string
	for _, x := range all {
		systems, r.Modes, proxies = append(systems, x.System), append(r.Modes, x.Modes...), append(proxies, x.Proxy)
	}
	once := func(words []string) []string {
		slices.Sort(words)
		return slices.DeleteFunc(slices.Compact(words), func(w string) bool { return w == "" })
	}
	r.System, r.Modes = strings.Join(once(systems), " and "), once(r.Modes)
	silent := 0
	for _, p := range proxies {
		if p == "" {
			silent++
		}
	}
	r.Proxy = fmt.Sprintf("answers on %d of them", len(all)-silent)
	r.Checks, r.Findings = mergeChecks(all), mergeFindings(all)
	return r
}

// share counts nodes, and names the first ones.
func share(n, of int, nodes []string) string {
	const most = 3
	if n == of {
		return fmt.Sprintf("all %d nodes", of)
	}
	some := strings.Join(nodes[:min(n, most)], ", ")
	if n > most {
		some += fmt.Sprintf(" and %d more", n-most)
	}
	return fmt.Sprintf("%d of %d nodes (%s)", n, of, some)
}

// mergeChecks has the checks in the order of the first node that has them.
func mergeChecks(all []*Report) []CheckResult {
	worse := []State{Skipped, OK, Found, Failed}
	var merged []CheckResult
	nodes := map[string][]string{} // that are in the state of the merged check
	for _, r := range all {
		for _, c := range r.Checks {
			i := slices.IndexFunc(merged, func(m CheckResult) bool { return m.Name == c.Name })
			if i < 0 {
				i, merged = len(merged), append(merged, CheckResult{Name: c.Name, State: Skipped, Note: c.Note})
			}
			switch is := slices.Index(worse, c.State) - slices.Index(worse, merged[i].State); {
			case is > 0:
				merged[i], nodes[c.Name] = c, []string{r.Node}
			case is == 0:
				nodes[c.Name] = append(nodes[c.Name], r.Node)
			}
		}
	}
	for i := range merged {
		if c := &merged[i]; c.State == Found || c.State == Failed {
			c.Note = strings.Trim(share(len(nodes[c.Name]), len(all), nodes[c.Name])+": "+c.Note, ": ")
		}
	}
	return merged
}

// mergeFindings has the worst and most frequent findings first, and last what others explain.
func mergeFindings(all []*Report) []Finding {
	type key struct {
		topic         Topic
		subject, mode string
	}
	type found struct {
		Finding
		nodes   []string
		differs bool // the nodes say it in other words
	}
	var merged []*found
	by := map[key]*found{}
	for _, r := range all {
		for _, f := range r.Findings {
			k := key{f.Topic, f.Subject, f.Mode}
			if by[k] == nil {
				by[k] = &found{Finding: f}
				merged = append(merged, by[k])
			}
			by[k].nodes, by[k].differs = append(by[k].nodes, r.Node), by[k].differs || f.What != by[k].What
		}
	}
	slices.SortStableFunc(merged, func(a, b *found) int {
		explained := cmp.Compare(min(len(a.Cause), 1), min(len(b.Cause), 1))
		return cmp.Or(explained, cmp.Compare(a.severity(), b.severity()), cmp.Compare(len(b.nodes), len(a.nodes)))
	})
	findings := []Finding{}
	for _, f := range merged {
		such := ""
		if f.differs {
			such = "on " + f.nodes[0] + ", "
		}
		f.What = share(len(f.nodes), len(all), f.nodes) + ": " + such + f.What
		findings = append(findings, f.Finding)
	}
	return findings
}
