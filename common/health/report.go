// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"strings"
	"time"
)

// Report is the body of /healthz and /livez.
type Report struct {
	// LastUpdated is the earliest time, over all families, at which a family was last
	// fully programmed. It is zero if one never was.
	LastUpdated time.Time `json:"lastUpdated"`
	CurrentTime time.Time `json:"currentTime"`
	// NodeEligible is for /healthz only.
	NodeEligible *bool  `json:"nodeEligible,omitempty"`
	NodeReason   string `json:"nodeReason,omitempty"`
	// Healthy is true if every family is healthy.
	Healthy bool                    `json:"healthy"`
	Status  map[string]FamilyReport `json:"status"` // by "IPv4" and "IPv6"
	// Standby is the service proxy that programs the node in place of this one.
	Standby    string            `json:"standby,omitempty"`
	Sources    []SourceReport    `json:"sources,omitempty"`
	Conditions map[string]string `json:"conditions,omitempty"`
	// Blocked names the conditions that keep traffic from flowing. They do not change the
	// status of an answer, because a restart does not correct them. Nor does it help to
	// remove the node from every load balancer: a health check that cannot be answered
	// concerns one Service. A kernel that does not forward by default may do so for some
	// interfaces, and still serves endpoints in the host's network.
	Blocked []string `json:"blocked,omitempty"`
	// BlockedFamilies names the IP families of which no traffic flows because of them.
	BlockedFamilies  []string          `json:"blockedFamilies,omitempty"`
	publicConditions map[string]string // Conditions without names
}

// detailsHint is where names can be found.
const detailsHint = "kube-proxy status, /services of the metrics server and the log say which"

// redact removes what names Services. Every client that reaches the node can query the
// health server, such as load balancers and other tenants.
func (r *Report) redact() {
	r.Conditions = r.publicConditions
	if r.Standby != "" {
		r.Standby = "another service proxy of this node"
	}
	for name, s := range r.Status {
		if s.LastError != "" {
			s.LastError = "the latest round failed: " + detailsHint
		}
		if s.FailedPorts > 0 {
			s.LastError = fmt.Sprintf("%d Service ports could not be programmed: %s", s.FailedPorts, detailsHint)
		}
		r.Status[name] = s
	}
	for i := range r.Sources {
		if s := &r.Sources[i]; s.Error != "" {
			s.Error = "not everything could be read: " + detailsHint
		}
	}
}

// FamilyReport is the state of one family.
type FamilyReport struct {
	LastUpdated time.Time `json:"lastUpdated"` // end of the last successful round
	Healthy     bool      `json:"healthy"`
	Reason      string    `json:"reason,omitempty"` // why it is unhealthy
	// Failing means that the latest round failed, and not for single ports only. The
	// state that an earlier round programmed may or may not be in force. The family
	// becomes unhealthy only if this persists, because a new process might fail too.
	Failing bool `json:"failing,omitempty"`
	// Waiting means unhealthy because other components have not created something yet. A
	// new process would wait too. Rounds continue.
	Waiting bool `json:"waiting,omitempty"`
	// Busy means unhealthy, but in a round that progresses. A new process would have as
	// much to do.
	Busy       bool   `json:"busy,omitempty"`
	Generation uint64 `json:"generation"` // in force
	// OldestPending is the time of the oldest change that is not in force, or nil.
	OldestPending *time.Time `json:"oldestPending,omitempty"`
	Rounds        int        `json:"rounds"`
	// FailedPorts counts the Service ports that the latest round could not program. They
	// do not make the family unhealthy, because one bad Service would take every node out
	// of service.
	FailedPorts   int    `json:"failedPorts"`
	DriftFound    int    `json:"driftFound"`
	DriftRepaired int    `json:"driftRepaired"`
	LastError     string `json:"lastError,omitempty"` // of the latest round
}

// SourceReport is the state of one source.
type SourceReport struct {
	Name        string     `json:"name"`
	Synced      bool       `json:"synced"`
	LastContact *time.Time `json:"lastContact,omitempty"`
	// StalenessSeconds is the time since LastContact.
	StalenessSeconds float64 `json:"stalenessSeconds,omitempty"`
	Stale            bool    `json:"stale"`
	// Error is the latest of its faults, Faults is their number.
	Error  string `json:"error,omitempty"`
	Faults int    `json:"faults,omitempty"`
}

// maxError bounds the reported part of an error. An error about thousands of ports is
// long.
const maxError = 2000

// alive reports whether no family has a fault that a restart might fix.
func (r *Report) alive() bool {
	for _, s := range r.Status {
		if !s.alive() {
			return false
		}
	}
	return true
}

func (r *FamilyReport) alive() bool { return r.Healthy || r.Waiting || r.Busy }

func (s *familyState) report(now time.Time, limit time.Duration) FamilyReport {
	reason := s.unhealthyReason(now, limit)
	r := FamilyReport{
		LastUpdated:   s.lastSuccess,
		Healthy:       reason == "",
		Reason:        reason,
		Generation:    s.generation,
		Rounds:        s.rounds,
		FailedPorts:   s.failed,
		DriftFound:    s.driftFound,
		DriftRepaired: s.driftRepaired,
		LastError:     s.err,
		Failing:       s.failing,
	}
	if reason != "" && s.waiting && now.Sub(s.lastEnd) <= limit {
		r.Waiting = true
	}
	// lastProgress before lastEnd belongs to a round that has failed.
	r.Busy = reason != "" && s.lastProgress.After(s.lastEnd) && now.Sub(s.lastProgress) <= limit
	r.LastError = shortened(s.err)
	if t := s.pending.oldest(); !t.IsZero() {
		r.OldestPending = &t
	}
	return r
}

// shortened truncates an error for a report.
func shortened(text string) string {
	if len(text) <= maxError {
		return text
	}
	return strings.ToValidUTF8(text[:maxError], "") + " ..."
}

// sourceFaults summarizes the faults of sources, "" if there are none. It names no
// object, because every client can read conditions.
func sourceFaults(sources []SourceReport) string {
	var all []string
	for _, s := range sources {
		var what []string
		if s.Faults == 1 {
			what = append(what, "1 fault")
		} else if s.Faults > 1 {
			what = append(what, fmt.Sprintf("%d faults", s.Faults))
		}
		if s.Stale {
			what = append(what, "stale")
		}
		if len(what) > 0 {
			all = append(all, s.Name+": "+strings.Join(what, ", "))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return strings.Join(all, "; ") + "; what was read before stays in force, and the log says more"
}

// unhealthyReason returns why s is unhealthy, or "".
func (s *familyState) unhealthyReason(now time.Time, limit time.Duration) string {
	oldest := s.pending.oldest()
	switch {
	case s.standby && !s.holderFailed.IsZero() && now.Sub(s.holderFailed) > limit:
		return fmt.Sprintf("the rules of the service proxy that programs this node are not in force for %s, more than %s",
			seconds(now.Sub(s.holderFailed)), limit)
	case s.standby:
		return ""
	case !s.synced:
		return "nothing was ever programmed" // by this process
	case !oldest.IsZero() && now.Sub(oldest) > limit:
		return fmt.Sprintf("a change waits to be programmed for %s, more than %s", seconds(now.Sub(oldest)), limit)
	case now.Sub(s.lastEnd) > limit:
		return fmt.Sprintf("the last round ended %s ago, more than %s", seconds(now.Sub(s.lastEnd)), limit)
	}
	return ""
}

func seconds(d time.Duration) time.Duration { return d.Round(time.Second) }

func reportSources(sources []Source, now time.Time) []SourceReport {
	var all []SourceReport
	for _, s := range sources {
		r := SourceReport{Name: s.Name, Synced: s.Synced, Stale: s.Stale, Error: shortened(s.Err), Faults: s.Faults}
		if t := s.LastContact; !t.IsZero() {
			r.LastContact, r.StalenessSeconds = &t, now.Sub(t).Seconds()
		}
		all = append(all, r)
	}
	return all
}
