// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/condition"
	"kubeproxy/common/health"
	"kubeproxy/common/metrics"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
)

// Sources records, for each source, the time of the last contact and the present
// faults. A source is a kind of object, or the manifests.
type Sources struct {
	api bool // the sources are kinds at an API server

	mu          sync.Mutex
	synced      bool // all sources have been read once
	never       int  // manifests that were never readable
	lastContact map[string]time.Time
	maxSilence  time.Duration // the longest time without contact
	faults      map[string]sourceFaults
	timeouts    map[string]int // watches that were given up, by kind
	restores    map[string]int // how often the resource version of a kind went backwards
}

// sourceFaults are a source's faults by object, of an API server one for each kind, under "".
type sourceFaults map[string]sourceFault

type sourceFault struct {
	text  string
	since time.Time
	last  time.Time // reported
}

// latest returns the fault that was reported last, "" without any.
func (s sourceFaults) latest() string {
	var found sourceFault
	for _, object := range slices.Sorted(maps.Keys(s)) {
		if f := s[object]; found.text == "" || f.last.After(found.last) {
			found = f
		}
	}
	return found.text
}

// staleAfter is the longest time without contact for a kind. A silent watch is given up
// earlier, and its successor counts as contact.
const staleAfter = 5 * time.Minute

// NewSources returns the Sources of a proxy that reads an API server.
func NewSources() *Sources {
	return &Sources{
		api: true, lastContact: map[string]time.Time{}, maxSilence: staleAfter, faults: map[string]sourceFaults{},
		timeouts: map[string]int{}, restores: map[string]int{},
	}
}

// NewManifestSources returns the Sources of a proxy that reads manifests.
func NewManifestSources() *Sources {
	s := NewSources()
	s.api = false
	return s
}

// ManifestSource is the name of the source that reads manifests.
const ManifestSource = "manifests"

// ManifestsRead records that all manifests were read. The next reading follows after
// every; manifests are stale after two such periods. They are not synced while some of
// them were never readable.
func (so *Sources) ManifestsRead(every time.Duration, never int) {
	so.mu.Lock()
	defer so.mu.Unlock()
	so.maxSilence, so.never = 2*every, never
	so.lastContact[ManifestSource] = time.Now()
}

// RecordFault records the state of an object, "" for the whole source. It returns since
// when the object has a fault, zero if it has none and had none.
func (so *Sources) RecordFault(of string, f source.Fault) (since time.Time) {
	so.mu.Lock()
	defer so.mu.Unlock()
	return so.setFault(of, f)
}

func (so *Sources) setFault(of string, f source.Fault) (since time.Time) {
	old := so.faults[of][f.Object]
	if f.Err == nil {
		delete(so.faults[of], f.Object)
		return old.since
	}
	if so.faults[of] == nil {
		so.faults[of] = sourceFaults{}
	}
	now := time.Now()
	if old.since.IsZero() {
		old.since = now
	}
	so.faults[of][f.Object] = sourceFault{text: withoutURL(f.Err), since: old.since, last: now}
	return old.since
}

// withoutURL returns the text of err, with the host in place of the URL of a request.
func withoutURL(err error) string {
	text := err.Error()
	of, is := errors.AsType[*url.Error](err)
	if !is {
		return text
	}
	cause := of.Err.Error()
	if u, err := url.Parse(of.URL); err == nil && !strings.Contains(cause, u.Host) {
		cause = u.Host + ": " + cause
	}
	return strings.Replace(text, of.Error(), cause, 1)
}

// RecordContact records that a kind was up to date just now, and clears its fault.
func (so *Sources) RecordContact(kind string) {
	so.mu.Lock()
	defer so.mu.Unlock()
	so.lastContact[kind] = time.Now()
	so.setFault(kind, source.Fault{})
}

// RecordError records a fault of the kind in err, or of the whole API server.
func (so *Sources) RecordError(err error) {
	so.mu.Lock()
	defer so.mu.Unlock()
	kind := ""
	if e, ok := errors.AsType[*source.ReadError](err); ok {
		if kind = e.Kind; e.Optional && so.lastContact[kind].IsZero() {
			so.setFault(kind, source.Fault{}) // any earlier fault is over
			return
		}
	}
	so.setFault(kind, source.Fault{Err: err})
}

// nodesRead returns whether the API server has delivered the Nodes with the own name.
func (so *Sources) nodesRead() bool {
	so.mu.Lock()
	defer so.mu.Unlock()
	return !so.lastContact["nodes"].IsZero()
}

// WatchTimedOut counts a watch of a kind that was given up.
func (so *Sources) WatchTimedOut(kind string) {
	so.mu.Lock()
	defer so.mu.Unlock()
	so.timeouts[kind]++
}

// Restored counts that the resource version of a kind went backwards.
func (so *Sources) Restored(kind string) {
	so.mu.Lock()
	defer so.mu.Unlock()
	so.restores[kind]++
}

func (so *Sources) setSynced() {
	so.mu.Lock()
	defer so.mu.Unlock()
	so.synced = true
}

// requiredKinds exist in every API server, optionalKinds may be missing.
var requiredKinds, optionalKinds = []string{"services", "endpointslices", "nodes"}, []string{"servicecidrs"}

func (so *Sources) report() []health.Source {
	so.mu.Lock()
	defer so.mu.Unlock()
	if !so.api {
		s := so.reportOf(ManifestSource)
		s.Synced = so.synced && so.never == 0
		return []health.Source{s}
	}
	var all []health.Source
	for _, kind := range requiredKinds {
		all = append(all, so.reportOf(kind))
	}
	for _, kind := range optionalKinds {
		if s := so.reportOf(kind); s.Synced || s.Err != "" {
			all = append(all, s)
		}
	}
	return all
}

// Unsynced returns the sources that have not been read yet.
func (so *Sources) Unsynced() []string {
	var all []string
	for _, s := range so.report() {
		if !s.Synced {
			all = append(all, s.Name)
		}
	}
	return all
}

func (so *Sources) reportOf(kind string) health.Source {
	at, ok := so.lastContact[kind]
	return health.Source{
		Name: kind, Synced: ok, LastContact: at, Stale: ok && time.Since(at) > so.maxSilence,
		Err: so.faults[kind].latest(), Faults: len(so.faults[kind]),
	}
}

// counts returns how many watches of a kind were given up, and how often it went backwards.
func (so *Sources) counts(kind string) (timeouts, restores int) {
	so.mu.Lock()
	defer so.mu.Unlock()
	return so.timeouts[kind], so.restores[kind]
}

// sink is the sink of the source. It reports objects and passes them to the tracker.
type sink struct {
	*track.Tracker
	health       *health.Monitor
	metrics      *metrics.Metrics
	events       *Events
	latency      *latency
	sources      *Sources
	node         *nodeLog
	deprecations *deprecations
}

func (si sink) SetService(s *corev1.Service) bool {
	si.metrics.ServiceChanged()
	si.events.setService(s)
	si.events.reportDeprecation(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, si.deprecations.update(s))
	changed := si.Tracker.SetService(s)
	if !changed {
		si.metrics.ServiceUnchanged()
	}
	return changed
}

func (si sink) DeleteService(n types.NamespacedName) bool {
	si.metrics.ServiceChanged()
	si.events.removeService(n)
	si.deprecations.remove(n)
	changed := si.Tracker.DeleteService(n)
	if !changed {
		si.metrics.ServiceUnchanged()
	}
	return changed
}

// SetSlice withdraws the latency record of a slice that changes nothing for the tracker.
// No round follows such a slice, and the next round has nothing to do with it.
func (si sink) SetSlice(s *discoveryv1.EndpointSlice) bool {
	si.metrics.EndpointsChanged()
	pending := si.latency.sliceChanged(s)
	changed := si.Tracker.SetSlice(s)
	if !changed {
		si.metrics.EndpointsUnchanged()
		si.latency.withdraw(pending)
	}
	return changed
}

func (si sink) DeleteSlice(n types.NamespacedName) bool {
	si.metrics.EndpointsChanged()
	si.latency.sliceDeleted(n)
	changed := si.Tracker.DeleteSlice(n)
	if !changed {
		si.metrics.EndpointsUnchanged()
	}
	return changed
}

func (si sink) SetNode(n *corev1.Node) {
	si.health.SetNode(n)
	si.Tracker.SetNode(n)
	si.node.nodeChanged(si.Tracker)
	si.node.eligibilityChanged(si.health.Report().NodeReason)
}

func (si sink) DeleteNode() {
	si.health.DeleteNode()
	si.Tracker.DeleteNode()
	si.node.eligibilityChanged(si.health.Report().NodeReason)
}

func (si sink) Synced() {
	si.sources.setSynced()
	si.Tracker.Synced()
}

// problems shows a sort of problems as a condition.
type problems struct {
	health    *health.Monitor
	tracker   *track.Tracker
	summary   string
	condition condition.Name
	shows     func(track.Problem) bool
	// pending means that there is a new one, shown that the condition holds.
	pending, shown atomic.Bool
}

// newProblems returns what shows addresses of Services that are refused, and what cannot
// be used of the own Node and of ServiceCIDRs. Other problems are in the states of Services.
func newProblems(t *track.Tracker, monitor *health.Monitor) []*problems {
	of := func(condition condition.Name, summary string, shows func(track.Problem) bool) *problems {
		return &problems{health: monitor, tracker: t, condition: condition, summary: summary, shows: shows}
	}
	return []*problems{
		of(condition.RefusedAddresses, "addresses of Services are refused", func(p track.Problem) bool { return p.Refused }),
		of(condition.ServiceCIDRs, "ServiceCIDRs cannot be used, or not for all addresses", func(p track.Problem) bool { return p.Kind == track.OfServiceCIDR }),
		of(condition.NodeObject, "the Node cannot be used as it is", func(p track.Problem) bool { return p.Kind == track.OfNode }),
	}
}

func (pr *problems) problemFound(p track.Problem) {
	if pr.shows(p) {
		pr.pending.Store(true)
	}
}

func (pr *problems) report() {
	if !pr.pending.Swap(false) && !pr.shown.Load() {
		return
	}
	var all []string
	for _, p := range pr.tracker.Problems() {
		if pr.shows(p) {
			where := p.Field
			if p.Kind == track.OfService {
				where = p.Service.String()
			}
			all = append(all, where+": "+p.Message)
		}
	}
	pr.shown.Store(len(all) > 0)
	text := joinFirst(all)
	pr.health.SetDetailedCondition(pr.condition, hint(text, pr.summary), text)
}
