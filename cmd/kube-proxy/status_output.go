// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/printable"
)

// statusOutput is what -o json prints. Fields are added, but neither renamed nor removed.
type statusOutput struct {
	Server string `json:"server"` // that was asked
	// OK is what the exit code says: the proxy is healthy, its latest rounds did
	// not fail, nothing keeps traffic from flowing, and all Services asked about are programmed in full, whether they
	// are listed or not. Of the proxy, one Service asked about by name minds only that
	// traffic of its own IP families flows.
	OK      bool          `json:"ok"`
	Summary statusSummary `json:"summary"`
	servicestate.Response
}

// statusSummary counts the selected Services.
type statusSummary struct {
	Services int `json:"services"`
	// NotProgrammed are Services that are not fully in force. Problems are Services of
	// which something was left out or guessed. Unserved are Services with a port that
	// serves no client.
	NotProgrammed int `json:"notProgrammed"`
	Problems      int `json:"problems"`
	Unserved      int `json:"unserved"`
	// Unanswered are Services with a health check that is not answered on all addresses.
	Unanswered int `json:"unasked"`
}

// newStatusOutput evaluates a response and keeps the part that q selects.
func newStatusOutput(server string, a *servicestate.Response, q *statusOptions) (*statusOutput, error) {
	services := slices.DeleteFunc(a.Services, func(s servicestate.Service) bool { return q.name != "" && s.Name != q.name })
	if q.name != "" && len(services) == 0 {
		return nil, &exit{exitNotOK, fmt.Errorf("no Service named %s is known to the proxy in any namespace: it may be headless, of type ExternalName, without ports, or left to another proxy", q.name)}
	}
	d := &statusOutput{Server: server, Response: *a}
	d.Summary.Services = len(services)
	for i := range services {
		d.Summary.add(&services[i])
	}
	well := a.Health.Healthy && !failing(&a.Health) && len(a.Health.Blocked) == 0
	if q.name != "" {
		well = !slices.ContainsFunc(services, func(s servicestate.Service) bool { return blocked(&s, a.Health.BlockedFamilies) })
	}
	d.OK = well && d.Summary.NotProgrammed == 0 && d.Summary.Problems == 0 && d.Summary.Unanswered == 0
	if q.failing {
		services = slices.DeleteFunc(services, func(s servicestate.Service) bool {
			return !notProgrammed(&s) && !unserved(&s) && !healthCheckUnanswered(&s)
		})
	}
	d.Services = services
	return d, nil
}

// blocked reports that a Service has a port in one of families.
func blocked(s *servicestate.Service, families []string) bool {
	return slices.ContainsFunc(s.Ports, func(p servicestate.Port) bool { return slices.Contains(families, p.Family) })
}

// failing reports that a family's latest round failed as a whole, though not for
// long enough to call the proxy unhealthy.
func failing(r *health.Report) bool {
	for _, s := range r.Status {
		if s.Failing {
			return true
		}
	}
	return false
}

func (n *statusSummary) add(s *servicestate.Service) {
	if s.State != servicestate.Programmed {
		n.NotProgrammed++
	}
	if len(s.Problems) > 0 {
		n.Problems++
	}
	if unserved(s) {
		n.Unserved++
	}
	if healthCheckUnanswered(s) {
		n.Unanswered++
	}
}

// notProgrammed returns whether part of a Service is not in force.
func notProgrammed(s *servicestate.Service) bool {
	return s.State != servicestate.Programmed || len(s.Problems) > 0
}

// unserved returns whether a port of a Service serves no client anywhere. A traffic
// policy that leaves no endpoint on this node is in order.
func unserved(s *servicestate.Service) bool {
	return slices.ContainsFunc(s.Ports, func(p servicestate.Port) bool {
		return slices.ContainsFunc(p.Frontends, func(f servicestate.Frontend) bool {
			return slices.Contains([]servicestate.Reason{servicestate.NoEndpoints, servicestate.NoSources, servicestate.UnsupportedByMode}, f.Reason)
		})
	})
}

// healthCheckUnanswered returns whether load balancers cannot reach the health check of a
// Service on this node, and so regard the node as failed.
func healthCheckUnanswered(s *servicestate.Service) bool {
	return s.HealthCheck != nil && s.HealthCheck.Error != ""
}

func (d *statusOutput) printJSON(w io.Writer) error {
	e := json.NewEncoder(printable.Writer(w))
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(d)
}

// sanitize converts foreign text to one line without control characters.
func sanitize(s string) string { return printable.Text(strings.Join(strings.Fields(s), " ")) }
