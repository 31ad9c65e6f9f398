// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"slices"
	"time"

	"kubeproxy/common/document"
	"kubeproxy/common/health/servicestate"
)

// Overview is the state of a proxy, with a line for each Service, the worst first. It is what a
// table has, for a page.
type Overview struct {
	servicestate.ProxyInfo
	OK      bool   `json:"ok"` // as in Answer
	Verdict string `json:"verdict"`
	Mark    Mark   `json:"mark"` // good only if OK
	Summary string `json:"summary"`
	Lines   []Line `json:"lines"`
}

// Line is a Service.
type Line struct {
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	Ports     string     `json:"ports"`
	Type      string     `json:"type"`
	Addresses string     `json:"addresses"`
	State     string     `json:"state"`
	Mark      Mark       `json:"mark"`
	Endpoints string     `json:"endpoints"`
	Since     *time.Time `json:"since,omitempty"`
	Why       string     `json:"why,omitempty"`
}

// Mark is how bad something is.
type Mark string

// The marks.
const (
	Good    Mark = "good"
	Warning Mark = "warning"
	Bad     Mark = "bad"
)

func markOf(c document.Colour) Mark {
	switch c {
	case red:
		return Bad
	case yellow:
		return Warning
	}
	return Good
}

// NewOverview returns the overview of r, whose Services it sorts.
func NewOverview(r *servicestate.Response) *Overview {
	a := (&Query{Sort: ByState}).evaluate(r)
	verdict := healthCell(&a.Health)
	o := &Overview{ProxyInfo: a.ProxyInfo, OK: a.OK, Verdict: verdict.Text, Mark: markOf(verdict.Colour), Summary: a.Summary.text(len(a.Services)), Lines: make([]Line, 0, len(a.Services))}
	for i := range a.Services {
		o.Lines = append(o.Lines, lineOf(&a.Services[i]))
	}
	if o.Mark == Good && !o.OK {
		o.Verdict, o.Mark = o.Verdict+", but not every Service is in force", Warning
		if slices.ContainsFunc(o.Lines, func(l Line) bool { return l.Mark == Bad }) {
			o.Mark = Bad
		}
	}
	return o
}

func lineOf(s *servicestate.Service) Line {
	const most = 3
	state := stateOf(s)
	_, since := sinceWhen(s)
	return Line{
		Namespace: s.Namespace, Name: s.Name, Ports: truncateList(portsOf(s), most), Type: kindOf(s), Addresses: truncateList(addressesOf(s), most),
		State: state.Text, Mark: markOf(state.Colour), Endpoints: rangeText(s, func(p servicestate.Port) int { return p.Endpoints }), Since: since, Why: sanitize(problemText(s)),
	}
}
