// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/document"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/printable"
)

// Answer is what -o json prints. New versions may add fields, but must not rename or remove any.
type Answer struct {
	Server string `json:"server"` // that was asked
	// OK is what the exit code says: the proxy is healthy, its latest rounds did not fail, nothing
	// keeps traffic from flowing, and all selected Services are programmed in full, whether they are
	// listed or not. For one Service that was selected by name, the state of the proxy matters only if
	// it keeps traffic of its IP families from flowing.
	OK      bool    `json:"ok"`
	Summary Summary `json:"summary"`
	servicestate.Response
}

// The exit codes of kube-proxy status.
const (
	ExitNotOK       = 1
	ExitUnreachable = 2
)

// ExitCode returns the exit code for what Ask returned.
func ExitCode(a *Answer, err error) int {
	if _, unknown := errors.AsType[*unknownServiceError](err); unknown {
		return ExitNotOK
	}
	switch {
	case err != nil:
		return ExitUnreachable
	case !a.OK:
		return ExitNotOK
	}
	return 0
}

// Summary counts the selected Services.
type Summary struct {
	Services int `json:"services"`
	// NotProgrammed are Services that are not fully in force. Problems are Services with
	// parts that were left out or interpreted. Unserved are Services with a port that
	// serves no client.
	NotProgrammed int `json:"notProgrammed"`
	Problems      int `json:"problems"`
	Unserved      int `json:"unserved"`
	// Unanswered are Services with a health check that is not answered on all addresses.
	Unanswered int `json:"unanswered"`
}

// evaluate sets OK for a response and keeps the part that q selects.
func (q *Query) evaluate(a *servicestate.Response) (*Answer, error) {
	services := slices.DeleteFunc(a.Services, func(s servicestate.Service) bool { return q.Name != "" && s.Name != q.Name })
	if q.Name != "" && len(services) == 0 {
		return nil, &unknownServiceError{fmt.Sprintf("no Service named %s is known to the proxy in any namespace: it may be headless, of type ExternalName, without ports, or left to another proxy", q.Name)}
	}
	d := &Answer{Server: q.Server, Response: *a}
	d.Summary.Services = len(services)
	for i := range services {
		d.Summary.add(&services[i])
	}
	well := a.Health.Healthy && !unsynced(&a.Health) && !failing(&a.Health) && len(a.Health.Blocked) == 0
	if q.Name != "" {
		well = !slices.ContainsFunc(services, func(s servicestate.Service) bool { return blocked(&s, a.Health.BlockedFamilies) })
	}
	d.OK = well && d.Summary.NotProgrammed == 0 && d.Summary.Problems == 0 && d.Summary.Unanswered == 0
	if q.Failing {
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

// unsynced reports that something was never read, such as a broken manifest.
func unsynced(r *health.Report) bool {
	return slices.ContainsFunc(r.Sources, func(s health.SourceReport) bool { return !s.Synced })
}

func (n *Summary) add(s *servicestate.Service) {
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

// Format is the form of what is printed.
type Format string

// The formats.
const (
	Table Format = "table" // for a terminal
	Wide  Format = "wide"  // a table with all columns and nothing shortened
	JSON  Format = "json"
)

// View is how an answer is printed.
type View struct {
	Format Format
	Full   bool      // each Service in full, instead of the proxy and a line for each; not for JSON
	Colour bool      // for a terminal; not for JSON
	Now    time.Time // the end of durations
}

// Print writes an answer to w.
func (v *View) Print(w io.Writer, a *Answer) error {
	if v.Format == JSON {
		return document.WriteReadable(w, a)
	}
	p := &printer{colour: v.Colour, wide: v.Format == Wide, now: v.Now}
	if v.Full {
		p.services(a)
	} else {
		p.overview(a)
	}
	_, err := w.Write(p.text.Bytes())
	return err
}

// sanitize converts foreign text to one line without control characters.
func sanitize(s string) string { return printable.Text(strings.Join(strings.Fields(s), " ")) }
