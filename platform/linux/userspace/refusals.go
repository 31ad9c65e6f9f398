// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// The reasons why the relay refuses a client, as label values of metrics.
const (
	ServiceShare   = "service"   // the Service has its share of open files
	NamespaceShare = "namespace" // the Services of the namespace have theirs
	ClientShare    = "client"    // the client has its share
	NoFiles        = "files"     // all of them are in use
	NoSystem       = "system"    // an error of the system
	Loop           = "loop"      // it passed too many relays
)

// reasons lists all of them.
var reasons = []string{ServiceShare, NamespaceShare, ClientShare, NoFiles, NoSystem, Loop}

// refusal is one refused client.
type refusal struct {
	reason  string
	service serviceName
	client  netip.Prefix
	text    string // the error of the system
}

// refusals collects recent refusals. The zero value is ready for use.
type refusals struct {
	mu       sync.Mutex
	total    map[string]uint64
	episodes map[string]*episode
	detail   string
	report   func(text, detail string)
}

// episode is a time of refusals for one reason.
type episode struct {
	text   string
	last   time.Time
	end    *time.Timer
	names  []string // at most maxNamed
	others bool
}

// maxNamed limits the number of Services and clients that a report names.
const maxNamed = 3

func (r *refusals) observe(report func(text, detail string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report = report
	report(r.summarize())
}

// record counts x, and reports it if the summary changes.
func (r *refusals) record(x refusal, l *Limits) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total == nil {
		r.total, r.episodes = map[string]uint64{}, map[string]*episode{}
	}
	r.total[x.reason]++
	e := r.episodes[x.reason]
	if e == nil {
		e = &episode{text: describeRefusal(x, l)}
		e.end = time.AfterFunc(l.quietPeriod, func() { r.expire(x.reason, l.quietPeriod) })
		r.episodes[x.reason] = e
	}
	e.last = time.Now()
	e.addName(x)
	r.reportChange()
}

// expire removes an episode unless it continues.
func (r *refusals) expire(why string, quietPeriod time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.episodes[why]
	if left := quietPeriod - time.Since(e.last); left > 0 {
		e.end.Reset(left)
		return
	}
	delete(r.episodes, why)
	r.reportChange()
}

// reportChange reports the summary if it has changed.
func (r *refusals) reportChange() {
	text, detail := r.summarize()
	if detail == r.detail {
		return
	}
	r.detail = detail
	if r.report != nil {
		r.report(text, detail)
	}
}

// counts returns the number of refusals for each reason.
func (r *refusals) counts() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := map[string]uint64{}
	for _, why := range reasons {
		all[why] = r.total[why]
	}
	return all
}

// addName adds the name of the Service, namespace or client of x.
func (e *episode) addName(x refusal) {
	var name string
	switch {
	case x.reason == ClientShare:
		name = x.client.String()
		if x.client.IsSingleIP() {
			name = x.client.Addr().String()
		}
	case x.reason == NamespaceShare:
		name = x.service.namespace
	case x.service != serviceName{}:
		name = x.service.namespace + "/" + x.service.name
	}
	switch {
	case name == "" || slices.Contains(e.names, name):
	case len(e.names) < maxNamed:
		e.names = append(e.names, name)
	default:
		e.others = true
	}
}

// summarize describes all present refusals, without names and with them.
func (r *refusals) summarize() (text, detail string) {
	var without, with []string
	for _, why := range reasons {
		e := r.episodes[why]
		if e == nil {
			continue
		}
		names := strings.Join(e.names, ", ")
		if e.others {
			names += " and others"
		}
		if names != "" {
			names = " (" + names + ")"
		}
		without, with = append(without, e.text), append(with, e.text+names)
	}
	return strings.Join(without, "; "), strings.Join(with, "; ")
}

// describeRefusal describes why x was refused, without names.
func describeRefusal(x refusal, l *Limits) string {
	const raise = "raise the limit of open files of the process, which is %d"
	switch x.reason {
	case ServiceShare:
		return fmt.Sprintf("clients of Services are refused, because one Service may have no more open files than are free, at most half of %d: "+raise, l.max, l.files)
	case NamespaceShare:
		return fmt.Sprintf("clients of Services are refused, because those of one namespace may have no more than twice the open files that are free, at most two thirds of %d: "+raise, l.max, l.files)
	case ClientShare:
		return fmt.Sprintf("clients are refused, because one client may have no more than a third of the open files that are free, at most a quarter of %d: "+raise, l.max, l.files)
	case NoFiles:
		return fmt.Sprintf("clients of Services are refused, or Services have no listener, because the %d open files for them are in use: "+raise, l.max, l.files)
	case Loop:
		return "clients of Services are refused, because they came through relays too often: an endpoint of the Service leads back to a Service, or the client sends with a low hop limit"
	}
	return "connections to Services wait: " + x.text
}
