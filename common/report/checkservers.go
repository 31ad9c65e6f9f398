// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"

	"k8s.io/klog/v2"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicecheck"
	"kubeproxy/common/health/servicestate"
)

// checkServers answers the health checks of Services, and shows which it cannot answer.
type checkServers struct {
	*servicecheck.Servers
	health *health.Monitor
	events *Events
	log    klog.Logger
}

func newCheckServers(o Options, to *health.Monitor, events *Events) *checkServers {
	c := &checkServers{health: to, events: events, log: o.Log}
	c.Servers = &servicecheck.Servers{Serving: to.Serving, Listen: o.Listen, Connections: health.NewConnections(o.MaxConnections), Report: c.report}
	return c
}

// report reports a problem that appears or is over.
func (c *checkServers) report(p servicecheck.Problem) {
	c.showProblems(c.Problems())
	c.events.reportHealthCheck(p)
	if p.Err != nil {
		c.log.Error(p.Err, "A health check of a Service is not served", "service", p.Namespace+"/"+p.Name, "address", p.Addr.String())
	}
}

func (c *checkServers) showProblems(all []servicecheck.Problem) {
	c.health.SetBlockingCondition("health-checks", checkProblemsSummary(all), checkProblemsDetail(all))
}

// unanswered lists the health checks that cannot be reached, by address.
func (c *checkServers) unanswered() []servicestate.Problem {
	var all []servicestate.Problem
	for _, p := range c.Problems() {
		all = append(all, servicestate.Problem{Namespace: p.Namespace, Name: p.Name, Message: p.Err.Error()})
	}
	return all
}

// checkProblemsSummary is the text of the condition for clients without authentication:
// it names no Service.
func checkProblemsSummary(problems []servicecheck.Problem) string {
	if len(problems) == 0 {
		return ""
	}
	return fmt.Sprintf("health checks of Services are not answered at %d addresses", len(problems))
}

// checkProblemsDetail returns a message about problems, empty without any.
func checkProblemsDetail(problems []servicecheck.Problem) string {
	if len(problems) == 0 {
		return ""
	}
	p := problems[0]
	if len(problems) == 1 {
		return fmt.Sprintf("the health check of service %s/%s is not answered: %v", p.Namespace, p.Name, p.Err)
	}
	return fmt.Sprintf("health checks of Services are not answered at %d addresses, the first for %s/%s: %v", len(problems), p.Namespace, p.Name, p.Err)
}
