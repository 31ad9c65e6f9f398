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

// survey returns what asks the running proxy for a survey, once. Without one, only objects are
// looked at, which then come from manifests or the API server.
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

// readSurvey looks at objects alone.
func (e *Examination) readSurvey(ctx context.Context, server *doctor.Cluster) (*explain.Survey, string, error) {
	r := reading.Reader{Config: e.config, Mode: e.selected, Node: e.node, Version: e.options.Version, Contents: e.contents}
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
	x, err := (&explain.Server{Tracker: t, Local: func(netip.Addr) bool { return false }}).Survey(ctx)
	if x != nil {
		x.Lacking = []string{"no proxy answers"}
	}
	return x, "", err
}
