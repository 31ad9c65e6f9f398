// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kubeproxy/common/health"
	"kubeproxy/common/lease"
	"kubeproxy/common/statusview"
)

// Proxy is the state of the proxy that runs on the node, as kube-proxy status shows it.
type Proxy struct {
	Answer *statusview.Answer // nil if nobody answered
	Err    error              // why not
}

// AskProxy asks the proxy at the metrics server of q.
func AskProxy(ctx context.Context, q statusview.Query) *Proxy {
	a, err := q.Ask(ctx)
	return &Proxy{a, err}
}

// String describes the proxy in a few words, empty if nobody answered.
func (p *Proxy) String() string {
	if p.Answer == nil {
		return ""
	}
	return fmt.Sprintf("kube-proxy %s answers at %s, mode %s, node %s", p.Answer.Version, p.Answer.Server, p.Answer.Mode, p.Answer.Node)
}

// covered are the conditions of a proxy that a topic of its own describes, by the
// beginning of their names. All others become Findings of ProxyCondition.
var covered = []struct {
	prefix string
	topic  Topic
	fix    string
}{
	{"setting-net.ipv4.ip_forward", IPForward, "sysctl -w net.ipv4.ip_forward=1"},
	{"setting-net.ipv6.conf.all.forwarding", IPForward, "sysctl -w net.ipv6.conf.all.forwarding=1"},
	{"setting-", Setting, ""},
	{"other-", OtherProxy, ""},
	{"leftovers-", Leftovers, ""},
	{"dynamic-ports", DynamicPorts, ""},
}

// conditionNodePorts counts what the checks of the node list one by one, and is up to a
// minute old.
const conditionNodePorts = "node-ports"

// SubjectOtherProxy is the Subject of OtherProxy, so that the proxy and the node report one
// Finding.
const SubjectOtherProxy = "other-proxy"

// Check returns the Check of what the running proxy itself reports. Its conditions are
// the only source of what keeps traffic from flowing, here as in kube-proxy status.
// holder returns the proxy that programs the node, false for none that can be asked.
func (p *Proxy) Check(holder func(context.Context) (lease.Identity, bool)) Check {
	return Check{Name: "running proxy", Look: func(ctx context.Context) (Seen, error) {
		if p.Answer != nil {
			return Seen{Findings: proxyFindings(&p.Answer.Health), Note: "health, sources and conditions"}, nil
		}
		who, runs := holder(ctx)
		if !runs {
			return NothingToSee("none answers"), nil
		}
		return Seen{Findings: []Finding{{Topic: ProxySilent, What: fmt.Sprintf("%s programs this node, and cannot be asked: %v", who, p.Err),
			Advice: "give the address of its metrics server with --server, or its configuration with --config"}}}, nil
	}}
}

func proxyFindings(r *health.Report) []Finding {
	var all []Finding
	for _, family := range slices.Sorted(maps.Keys(r.Status)) {
		s := r.Status[family]
		if s.Healthy && !s.Failing {
			continue
		}
		text := strings.TrimPrefix(s.Reason+": "+s.LastError, ": ")
		all = append(all, Finding{Topic: ProxyUnhealthy, Subject: family, What: fmt.Sprintf("%s is not programmed: %s", family, strings.TrimSuffix(text, ": ")),
			Advice: "read the log of the proxy; kube-proxy status shows whether a later round succeeds"})
	}
	for _, s := range r.Sources {
		if s.Error != "" || s.Stale || !s.Synced {
			all = append(all, Finding{Topic: APIServer, Subject: s.Name, What: sourceText(s), Severity: Risk, Advice: "kube-proxy status shows all errors of the sources"})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.Conditions)) {
		if name != conditionNodePorts {
			all = append(all, conditionFinding(r, name))
		}
	}
	return all
}

func sourceText(s health.SourceReport) string {
	switch {
	case s.Error != "":
		return fmt.Sprintf("the proxy cannot read %s: %s", s.Name, s.Error)
	case !s.Synced:
		return fmt.Sprintf("the proxy has not read %s yet", s.Name)
	}
	return fmt.Sprintf("the proxy has had no contact with %s for long", s.Name)
}

func conditionFinding(r *health.Report, name string) Finding {
	f := Finding{Topic: ProxyCondition, Subject: name, What: fmt.Sprintf("condition %s: %s", name, r.Conditions[name]), Severity: Risk}
	if slices.Contains(r.Blocked, name) {
		f.Severity = Blocks
	}
	for _, c := range covered {
		if strings.HasPrefix(name, c.prefix) {
			f.Topic, f.Subject, f.Fix = c.topic, strings.TrimPrefix(name, "setting-"), c.fix
			if c.topic == OtherProxy {
				f.Subject = SubjectOtherProxy
			}
			break
		}
	}
	if f.Fix == "" {
		f.Advice = "kube-proxy status shows when it is over"
	}
	return f
}
