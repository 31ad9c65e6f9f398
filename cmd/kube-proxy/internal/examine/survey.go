// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package examine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/doctor"
	"kubeproxy/common/explain"
	"kubeproxy/common/statusview"
)

// survey asks the running proxy once, or else has objects from manifests or the API server.
func (e *Examination) survey(server *doctor.Cluster) func(context.Context) (*explain.Survey, string, error) {
	type result struct {
		survey *explain.Survey
		why    string
		err    error
	}
	var once sync.Once
	var r result
	return func(ctx context.Context) (*explain.Survey, string, error) {
		once.Do(func() {
			if e.proxy.Answer != nil {
				r.survey, r.why, r.err = e.askSurvey(ctx)
			} else {
				r.survey, r.why, r.err = e.readSurvey(ctx, server)
			}
		})
		return r.survey, r.why, r.err
	}
}

func (e *Examination) askSurvey(ctx context.Context) (*explain.Survey, string, error) {
	q := statusview.Query{Server: e.proxy.Answer.Server, Version: e.options.Version}
	body, err := q.Page(ctx, "/survey")
	if errors.Is(err, statusview.ErrNoPage) {
		return nil, "the running proxy is of a version that cannot tell", nil
	}
	var x explain.Survey
	if err == nil {
		err = json.Unmarshal(body, &x)
	}
	if err != nil {
		return nil, "", fmt.Errorf("ask the proxy: %w", err)
	}
	return &x, "", nil
}

// readSurvey looks at objects, and follows packets through what a process that has ended left.
func (e *Examination) readSurvey(ctx context.Context, server *doctor.Cluster) (*explain.Survey, string, error) {
	r := reading.Reader{Config: e.config, Mode: e.selected, Node: e.node, Version: e.options.Version, Contents: e.contents}
	lacking := "no proxy answers, and nothing of one is in the kernel"
	left, found := e.installed(ctx)
	if found && left.Relays {
		lacking = fmt.Sprintf("no proxy answers, through whose process mode %s works", left.Name)
	}
	if found = found && !left.Relays && !e.options.BeforeStart; found {
		r.Mode, r.Local = left, true
	}
	t, err := r.Tracker, error(nil)
	if all := e.options.Proxy.Manifests; len(all) > 0 {
		t, err = r.Manifests(ctx, all)
	} else if to := server.Config(ctx); to != nil {
		_, err = r.Server(ctx, to, e.options.Timeout)
		t = r.Tracker
	}
	if t == nil || t.Latest() == nil {
		return nil, "no Services are known", err
	}
	if !found {
		x, err := (&explain.Server{Tracker: t, Local: func(netip.Addr) bool { return false }}).Survey(ctx)
		if x != nil {
			x.Lacking = []string{lacking}
		}
		return x, "", err
	}
	families, _ := e.families(left)
	s, end, err := explainer(ctx, setup(e.config, r.Nodes), left, families, t)
	if err != nil {
		return nil, "", fmt.Errorf("mode %s: %w", left.Name, err)
	}
	defer end()
	x, err := s.Survey(ctx)
	if x != nil {
		x.Lacking = append(x.Lacking, fmt.Sprintf("no proxy answers, so they were followed through what an earlier one left in mode %s", left.Name))
	}
	return x, "", err
}
