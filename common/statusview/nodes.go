// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// NodeAnswer is what one of many nodes answered.
type NodeAnswer struct {
	Node, Pod string
	Answer    *Answer // nil for none
	Error     string  // why there is none
	Code      int     // the exit code of status there
}

// ParseAnswer reads what -o json prints.
func ParseAnswer(text []byte) (*Answer, error) {
	a := &Answer{}
	if err := json.Unmarshal(text, a); err != nil || a.Mode == "" || a.Health.Status == nil {
		return nil, errors.New("it answers something else than the state of a proxy")
	}
	return a, nil
}

// usual is what most nodes say, by which others are told apart. Modes may well differ.
type usual struct {
	version   string
	endpoints int
}

// most returns the value that most nodes have, 0 or "" without a majority.
func most[T cmp.Ordered](all []NodeAnswer, of func(*Answer) T) (is T) {
	counts, n := map[T]int{}, 0
	for _, x := range all {
		if x.Answer != nil {
			counts[of(x.Answer)]++
			n++
		}
	}
	for _, v := range slices.Sorted(maps.Keys(counts)) {
		if 2*counts[v] > n {
			is = v
		}
	}
	return is
}

// PrintNodes writes a line for each node, the worst first.
func (v *View) PrintNodes(w io.Writer, all []NodeAnswer) error {
	u := usual{most(all, func(a *Answer) string { return a.Version }), most(all, func(a *Answer) int { return a.Endpoints })}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b NodeAnswer) int {
		return cmp.Or(cmp.Compare(rank(&b, &u), rank(&a, &u)), cmp.Compare(a.Node, b.Node))
	})
	counts := map[string]int{}
	for _, x := range all {
		counts[x.state()]++
	}
	listed := slices.DeleteFunc(slices.Clone(all), func(x NodeAnswer) bool { return v.Failing && rank(&x, &u) == 0 })
	p := &printer{colour: v.Colour, wide: v.Format == Wide, width: v.width(), now: v.Now}
	if v.Format == Name {
		for _, x := range listed {
			p.line("node/%s", sanitize(x.Node))
		}
	} else {
		p.sentence(fmt.Sprintf("Nodes: %d, well: %d, not well: %d, without answer: %d", len(all), counts[well], counts[bad], counts[silentNode]), cell{})
		p.nodes(listed, &u, v.Full)
	}
	_, err := w.Write(p.text.Bytes())
	return err
}

const well, bad, silentNode = "well", "bad", "silent"

func (x *NodeAnswer) state() string {
	switch {
	case x.Answer == nil:
		return silentNode
	case x.Code != 0 || !x.Answer.OK:
		return bad
	}
	return well
}

// rank is greater for a node in a worse state: without an answer, where traffic does not flow,
// where something is wrong, where something differs from most nodes.
func rank(x *NodeAnswer, u *usual) int {
	switch state := x.state(); {
	case state == silentNode:
		return 4
	case state == bad && healthCell(&x.Answer.Health).Colour == red:
		return 3
	case state == bad:
		return 2
	case len(u.differences(x.Answer)) > 0:
		return 1
	}
	return 0
}

// differences are what a does not have in common with most nodes.
func (u *usual) differences(a *Answer) (all []string) {
	if u.version != "" && a.Version != u.version {
		all = append(all, fmt.Sprintf("most nodes have version %s", u.version))
	}
	if u.endpoints > 0 && a.Endpoints != u.endpoints {
		all = append(all, fmt.Sprintf("most nodes know %d endpoints, %+d here", u.endpoints, a.Endpoints-u.endpoints))
	}
	return all
}

// nodes prints the table. With full, ENDPOINTS are those of the Services that were asked for.
func (p *printer) nodes(all []NodeAnswer, u *usual, full bool) {
	var rows [][]cell
	for _, x := range all {
		row := make([]cell, 11)
		row[0] = plain(sanitize(x.Node))
		row[10] = plain(sanitize(x.Error))
		if p.wide {
			row[9] = plain(sanitize(x.Pod))
		}
		if a := x.Answer; a != nil {
			row[1], row[2], row[3] = plain(sanitize(a.Version)), plain(sanitize(a.Mode)), healthCell(&a.Health)
			if onlyBlocked(&a.Health) && len(a.Health.Blocked) > 0 { // the last column says by what
				row[3] = painted("blocked", red)
			}
			row[4] = plain(fmt.Sprintf("%d/%d", a.Summary.Services-a.Summary.NotProgrammed, a.Summary.Services))
			row[5] = number(a.Endpoints)
			if full {
				row[5] = plain(endpointsOf(a))
			}
			row[6], row[7] = plain(generations(a)), plain(p.pending(a))
			row[8] = plain(sanitize(strings.Join(a.Layers, ",")))
			row[10] = plain(p.whyNot(&x, u))
		} else {
			row[3] = painted("no answer", red)
		}
		rows = append(rows, row)
	}
	p.section("", "NODE|VERSION|MODE|HEALTH|SERVICES|ENDPOINTS|GENERATION|PENDING|LAYERS|POD|WHY NOT", rows)
}

func endpointsOf(a *Answer) string {
	var all []string
	for i := range a.Services {
		all = append(all, rangeText(&a.Services[i], portEndpoints))
	}
	return strings.Join(unique(all), ",")
}

// generations is what is in force of what is wanted. Each process counts its own.
func generations(a *Answer) string {
	oldest := a.Generation
	for _, s := range a.Health.Status {
		oldest = min(oldest, s.Generation)
	}
	if oldest == a.Generation {
		return fmt.Sprint(oldest)
	}
	return fmt.Sprintf("%d of %d", oldest, a.Generation)
}

// pending is the age of the oldest change that is not in force.
func (p *printer) pending(a *Answer) string {
	var oldest *time.Time
	for _, s := range a.Health.Status {
		if t := s.OldestPending; t != nil && (oldest == nil || t.Before(*oldest)) {
			oldest = t
		}
	}
	return p.since(oldest)
}

// whyNot says what is wrong with a node that answers, and what differs.
func (p *printer) whyNot(x *NodeAnswer, u *usual) string {
	a, all := x.Answer, []string{}
	if x.state() == bad {
		for _, name := range a.Health.Blocked {
			all = append(all, a.Health.Conditions[name])
		}
		for _, f := range slices.Sorted(maps.Keys(a.Health.Status)) {
			if s := a.Health.Status[f]; (!s.Healthy || s.Failing) && !s.Blocked {
				all = append(all, strings.Trim(f+": "+s.Reason+"; "+s.LastError, "; "))
			}
		}
		for _, s := range a.Health.Sources {
			if !s.Synced {
				all = append(all, "not synced: "+s.Name+" "+sourceError(s))
			}
		}
		for i := range a.Services {
			if s := &a.Services[i]; notProgrammed(s) || healthCheckUnanswered(s) {
				all = append(all, fmt.Sprintf("%s/%s: %s, %s", s.Namespace, s.Name, stateOf(s).Text, problemText(s)))
			}
		}
	}
	all = append(all, u.differences(a)...)
	if n := len(all) - mostReasons; n > 0 && !p.wide {
		all = append(all[:mostReasons], fmt.Sprintf("and %d more, see kube-proxy status there", n))
	}
	return sanitize(strings.Join(all, "; "))
}

// mostReasons is how many reasons are printed of a node.
const mostReasons = 3
