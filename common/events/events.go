// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package events writes Kubernetes Events about failures on a node and their recovery.
// Callers decide what is an Event. The package keeps Events few, never delays its
// callers, and spreads the load of many nodes on the API server.
package events

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"kubeproxy/common/printable"
	"kubeproxy/common/source"
)

// Object is the object of an Event. Only the UID may be empty.
type Object struct {
	Kind, Namespace, Name string // no namespace for a Node
	UID                   types.UID
}

// Topic is a condition of an object that either holds or has failed. An Event is written
// when that changes, not when only the message does.
type Topic struct {
	Reason          string // reason of the Event, in CamelCase
	RecoveredReason string // reason after recovery; empty if recovery needs no Event
	// Scope determines whether nodes write separate Events or share one.
	Scope Scope
	// Informational means that Failed is no failure, and is reported at once.
	Informational bool
}

// Scope is how many nodes see the same condition.
type Scope uint8

const (
	// Node is for conditions of one node. Each node writes its own Event.
	Node Scope = iota
	// Cluster is for conditions that every node sees alike, such as a mistake in a
	// Service. All nodes write the same Event, under a name derived from its content and
	// the hour, and the API server accepts the first one.
	Cluster
)

// Options of a Recorder. The functions may be nil and must return at once.
type Options struct {
	Config *rest.Config // of the API server; its rate limits are not used
	Node   string       // the name of the own Node
	// Report is called for a failure that is the first of its kind since a success.
	Report func(error)
	// Written is called for each Event that the API server accepted. Dropped is called
	// for each one that it did not accept, with one of the reasons below.
	Written func()
	Dropped func(why string)
	// Spread bounds the random delay of an Event that all nodes may write. 0 means 30 s.
	Spread time.Duration
}

// Why an Event is dropped.
const (
	Full        = "full"        // too many conditions are tracked
	Forbidden   = "forbidden"   // the account may not write Events
	Refused     = "refused"     // the API server rejected it
	Unreachable = "unreachable" // the API server was unreachable for too long
)

// The limits. At worst a node writes overallBurst Events at once, then one per overallEvery.
const (
	overallBurst   = 10
	overallEvery   = 10 * time.Second
	conditionBurst = 3 // of one topic about one object
	conditionEvery = 5 * time.Minute
	maxConditions  = 500
	// stableTime is how long a condition must last: what the next round fixes is no Event.
	stableTime = 3 * time.Second
	// retention is how long a good condition is remembered, so that recurring Events are counted in
	// one: API servers delete them after an hour (kube-apiserver --event-ttl).
	retention = 50 * time.Minute
	// forbiddenPause is how long nothing is written after the API server forbade it.
	forbiddenPause = 30 * time.Minute
	// retryTimeout is how long an Event is retried.
	retryTimeout  = 15 * time.Minute
	defaultSpread = 30 * time.Second
)

// Recorder collects conditions and writes Events about them. A nil Recorder does nothing.
// All methods may be called from any goroutine, and only Run blocks.
type Recorder struct {
	options Options
	overall *rate.Limiter
	wake    chan struct{}

	mu               sync.Mutex
	writer           writer
	conditions       map[name][]*condition
	count            int                  // number of conditions
	pausedNamespaces map[string]time.Time // namespaces that accept no Events, until when
	pausedUntil      time.Time            // no attempts before
	failures         int                  // consecutive
	reported         map[string]bool      // failures that were reported
}

type name struct{ kind, namespace, name string }

// condition is a topic about an object.
type condition struct {
	object         Object
	topic          Topic
	failed         bool      // at present
	message        string    // present one
	reportedFailed bool      // value last reported
	due            time.Time // when to report, zero if there is nothing to report
	since          time.Time // when it was first due
	changed        time.Time
	limit          *rate.Limiter
	series         [2]series // Events of recovery and failure
}

// New returns a Recorder for an API server. It writes nothing before Run.
func New(o Options) (*Recorder, error) {
	w, err := newClient(o.Config)
	if err != nil {
		return nil, fmt.Errorf("set up the client for Events: %w", err)
	}
	return newRecorder(o, w), nil
}

// Use writes to another API server from now on.
func (r *Recorder) Use(to *rest.Config) error {
	if r == nil {
		return nil
	}
	w, err := newClient(to)
	if err != nil {
		return fmt.Errorf("set up the client for Events: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writer, r.pausedUntil = w, time.Time{}
	clear(r.pausedNamespaces)
	return nil
}

// inUse returns the present writer.
func (r *Recorder) inUse() writer {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writer
}

func newRecorder(o Options, w writer) *Recorder {
	if o.Spread == 0 {
		o.Spread = defaultSpread
	}
	return &Recorder{
		options: o, writer: w,
		overall:    rate.NewLimiter(rate.Every(overallEvery), overallBurst),
		wake:       make(chan struct{}, 1),
		conditions: map[name][]*condition{}, pausedNamespaces: map[string]time.Time{}, reported: map[string]bool{},
	}
}

// Failed records that t has failed for o, and why.
func (r *Recorder) Failed(o Object, t Topic, message string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.find(o, t)
	if m == nil {
		m = r.add(o, t)
	}
	if m != nil {
		m.object = o
		r.set(m, true, message)
	}
}

// Recovered records that t holds for o. It is reported only if the failure was.
func (r *Recorder) Recovered(o Object, t Topic, message string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.find(o, t); m != nil {
		r.set(m, false, message)
	}
}

// Forget removes the conditions of an object.
func (r *Recorder) Forget(o Object) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := name{o.Kind, o.Namespace, o.Name}
	r.count -= len(r.conditions[n])
	delete(r.conditions, n)
}

func (r *Recorder) find(o Object, t Topic) *condition {
	for _, m := range r.conditions[name{o.Kind, o.Namespace, o.Name}] {
		if m.topic.Reason == t.Reason {
			return m
		}
	}
	return nil
}

// add returns a new condition, or nil if there is no room.
func (r *Recorder) add(o Object, t Topic) *condition {
	if r.count >= maxConditions {
		r.evict(time.Now())
	}
	if r.count >= maxConditions {
		r.countDropped(Full)
		return nil
	}
	m := &condition{object: o, topic: t, limit: rate.NewLimiter(rate.Every(conditionEvery), conditionBurst)}
	n := name{o.Kind, o.Namespace, o.Name}
	r.conditions[n] = append(r.conditions[n], m)
	r.count++
	return m
}

// evict removes the conditions that have held for long, or if none has, for longest.
func (r *Recorder) evict(now time.Time) {
	var oldest *condition
	for n, list := range r.conditions {
		kept := list[:0]
		for _, m := range list {
			quiet := !m.failed && m.due.IsZero()
			if quiet && now.Sub(m.changed) > retention {
				r.count--
				continue
			}
			if quiet && (oldest == nil || m.changed.Before(oldest.changed)) {
				oldest = m
			}
			kept = append(kept, m)
		}
		r.setConditions(n, kept)
	}
	if r.count < maxConditions || oldest == nil {
		return
	}
	n := name{oldest.object.Kind, oldest.object.Namespace, oldest.object.Name}
	var kept []*condition
	for _, m := range r.conditions[n] {
		if m != oldest {
			kept = append(kept, m)
		}
	}
	r.count--
	r.setConditions(n, kept)
}

func (r *Recorder) setConditions(n name, list []*condition) {
	if len(list) == 0 {
		delete(r.conditions, n)
		return
	}
	r.conditions[n] = list
}

// set records the present state of a condition. The one last reported needs no Event.
func (r *Recorder) set(m *condition, failed bool, message string) {
	m.message = message
	if m.failed == failed {
		return
	}
	now := time.Now()
	m.failed, m.changed, m.due = failed, now, time.Time{}
	if failed != m.reportedFailed {
		r.schedule(m, now)
	}
}

func (r *Recorder) schedule(m *condition, now time.Time) {
	wait := stableTime
	switch {
	case m.topic.Informational:
		wait = 0
	case m.topic.Scope == Cluster:
		wait += rand.N(r.options.Spread)
	}
	m.due, m.since = now.Add(wait), now
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Recorder) countDropped(why string) {
	if r.options.Dropped != nil {
		r.options.Dropped(why)
	}
}

// report reports the first failure of each kind since the last success.
func (r *Recorder) report(kind string, err error) {
	if r.reported[kind] || r.options.Report == nil {
		return
	}
	r.reported[kind] = true
	r.options.Report(err)
}

// Run writes Events until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	for r != nil && ctx.Err() == nil {
		m, pending, pause := r.nextDue(time.Now())
		if m == nil {
			r.sleep(ctx, pause)
			continue
		}
		err := r.write(ctx, &pending)
		if ctx.Err() == nil {
			r.recordResult(m, &pending, err)
		}
	}
}

// idle is the pause while there is nothing to do.
const idle = time.Hour

func (r *Recorder) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-r.wake:
	}
}

// pendingEvent is a copy of a condition at the time of its report.
type pendingEvent struct {
	object        Object
	topic         Topic
	failed        bool
	message       string
	series        series
	now           time.Time
	writtenByPeer bool          // another node had written it before
	asked         time.Duration // how long the API server wants no other request
}

func (p *pendingEvent) reason() string {
	if p.failed {
		return p.topic.Reason
	}
	return p.topic.RecoveredReason
}

// nextDue returns a condition that is due, or the time until one is.
func (r *Recorder) nextDue(now time.Time) (*condition, pendingEvent, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var first *condition
	for _, list := range r.conditions {
		for _, m := range list {
			if !m.due.IsZero() && (first == nil || m.due.Before(first.due)) {
				first = m
			}
		}
	}
	if first == nil {
		return nil, pendingEvent{}, idle
	}
	if at := latest(first.due, r.pausedUntil); at.After(now) {
		return nil, pendingEvent{}, at.Sub(now)
	}
	if until := r.pausedNamespaces[first.object.Namespace]; until.After(now) {
		first.due = until
		return nil, pendingEvent{}, 0
	}
	if !first.failed && first.topic.RecoveredReason == "" {
		first.reportedFailed, first.due = false, time.Time{}
		return nil, pendingEvent{}, 0
	}
	if d := tokenDelay(r.overall, now); d > 0 {
		return nil, pendingEvent{}, d
	}
	if d := tokenDelay(first.limit, now); d > 0 {
		first.due = now.Add(d)
		return nil, pendingEvent{}, 0
	}
	r.overall.AllowN(now, 1)
	first.limit.AllowN(now, 1)
	n := pendingEvent{object: first.object, topic: first.topic, failed: first.failed, message: first.message, now: now}
	n.series = first.series[seriesIndex(n.failed)]
	return first, n, 0
}

// tokenDelay returns the time until a token is available. It does not take the token.
func tokenDelay(l *rate.Limiter, now time.Time) time.Duration {
	take := l.ReserveN(now, 1)
	defer take.CancelAt(now)
	return take.DelayFrom(now)
}

func seriesIndex(failed bool) int {
	if failed {
		return 1
	}
	return 0
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// recordResult records the outcome of writing n for m, which may have changed meanwhile.
func (r *Recorder) recordResult(m *condition, n *pendingEvent, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch {
	case err == nil:
		r.failures, r.pausedUntil = 0, time.Time{}
		clear(r.reported)
		delete(r.pausedNamespaces, n.object.Namespace)
		m.series[seriesIndex(n.failed)] = n.series
		if r.options.Written != nil && !n.writtenByPeer {
			r.options.Written()
		}
	case apierrors.IsForbidden(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		r.countDropped(Forbidden)
		r.report(Forbidden, fmt.Errorf("write Event %s: %w", n.reason(), err))
		r.pausedNamespaces[n.object.Namespace] = now.Add(forbiddenPause)
		return // it stays due
	case retryable(err) && now.Sub(m.since) < retryTimeout:
		r.report(Unreachable, fmt.Errorf("write Event %s: %w", n.reason(), err))
		pause := min(time.Second<<min(r.failures, 6), time.Minute)
		if n.asked > 0 { // it asks all nodes alike
			pause = max(pause, wait.Jitter(n.asked, 0.5))
		}
		r.pausedUntil = now.Add(pause)
		r.failures++
		return // it stays due
	case retryable(err):
		r.countDropped(Unreachable)
	default:
		r.countDropped(Refused)
		r.report(Refused, fmt.Errorf("write Event %s: %w", n.reason(), err))
	}
	m.reportedFailed, m.due = n.failed, time.Time{}
	if m.failed != m.reportedFailed {
		r.schedule(m, now)
	}
}

var _ apierrors.APIStatus = (*apierrors.StatusError)(nil)

// retryable reports whether a later attempt may succeed.
func retryable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	code := status.Status().Code
	return code == 429 || code >= 500 || apierrors.IsUnauthorized(err)
}

// component is the source of the Events, under the name that people search for.
const component = "kube-proxy"

// maxMessage is below newer Events' limit: kubernetes: pkg/apis/core/validation/events.go.
const maxMessage = 1000

// series is an Event in the API server whose count can be increased.
type series struct {
	name  string
	count int32
	last  time.Time
}

// writer is the required part of the API.
type writer interface {
	create(ctx context.Context, e *corev1.Event) error
	patch(ctx context.Context, namespace, name string, change []byte) error
}

// write adds n to its series, or creates a new Event.
func (r *Recorder) write(ctx context.Context, n *pendingEvent) error {
	ctx, cancel := context.WithTimeout(source.WithRetryAfter(ctx), 10*time.Second)
	defer cancel()
	err := r.attempt(ctx, n)
	n.asked = source.RetryAfter(ctx, err)
	return err
}

func (r *Recorder) attempt(ctx context.Context, n *pendingEvent) error {
	namespace := cmp.Or(n.object.Namespace, metav1.NamespaceDefault)
	if n.series.name != "" && n.now.Sub(n.series.last) < retention {
		err := r.inUse().patch(ctx, namespace, n.series.name, n.countPatch())
		if err == nil {
			n.series.count, n.series.last = n.series.count+1, n.now
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	e := r.event(n, namespace)
	err := r.inUse().create(ctx, e)
	if n.topic.Scope == Cluster {
		n.writtenByPeer = apierrors.IsAlreadyExists(err)
		if n.writtenByPeer {
			return nil
		}
		return err
	}
	if err == nil {
		n.series = series{e.Name, 1, n.now}
	}
	return err
}

// countPatch returns a patch that increases the count.
func (p *pendingEvent) countPatch() []byte {
	text, err := json.Marshal(map[string]any{
		"count": p.series.count + 1, "lastTimestamp": metav1.NewTime(p.now), "message": oneLine(p.message),
	})
	if err != nil {
		panic(err) // numbers and text can always be encoded
	}
	return text
}

func (r *Recorder) event(n *pendingEvent, namespace string) *corev1.Event {
	at := metav1.NewTime(n.now)
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: eventName(n.object, rand.Uint64())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: n.object.Kind, Namespace: n.object.Namespace, Name: n.object.Name, UID: n.object.UID,
		},
		Type: corev1.EventTypeNormal, Reason: n.reason(), Message: oneLine(n.message),
		Source: corev1.EventSource{Component: component, Host: r.options.Node}, Count: 1,
		FirstTimestamp: at, LastTimestamp: at,
		ReportingController: component, ReportingInstance: r.options.Node,
	}
	if n.failed && !n.topic.Informational {
		e.Type = corev1.EventTypeWarning
	}
	if n.topic.Scope == Cluster {
		e.Name, e.Source.Host = sharedName(n), ""
	}
	return e
}

// maxName is the limit of the names of most objects, also of Nodes:
// https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
const maxName = 253

// eventName returns the name of an Event about an object, with a number for this one.
func eventName(o Object, number uint64) string {
	suffix := fmt.Sprintf(".%016x", number)
	return strings.TrimRight(o.Name[:min(len(o.Name), maxName-len(suffix))], "-.") + suffix
}

// sharedName returns a name that every node gives the same Event within an hour.
func sharedName(n *pendingEvent) string {
	h := fnv.New64a()
	for _, part := range []string{string(n.object.UID), n.object.Kind, n.reason(), n.message, n.now.UTC().Format("2006010215")} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return eventName(n.object, h.Sum64())
}

// oneLine returns a message, maybe of joined errors, on one printable line, cut between characters.
func oneLine(s string) string {
	s = printable.Text(strings.ReplaceAll(s, "\n", "; "))
	if len(s) <= maxMessage {
		return s
	}
	end := maxMessage - len(" ...")
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + " ..."
}

// client is the writer for an API server.
type client struct{ rest *rest.RESTClient }

func newClient(to *rest.Config) (client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return client{}, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := rest.CopyConfig(to)
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.QPS, c.RateLimiter, c.WarningHandler = -1, nil, rest.NoWarnings{}
	source.NoteRetryAfter(c)
	api, err := rest.RESTClientFor(c)
	return client{api}, err
}

func (c client) create(ctx context.Context, e *corev1.Event) error {
	return c.rest.Post().Namespace(e.Namespace).Resource("events").Body(e).MaxRetries(0).Do(ctx).Error()
}

func (c client) patch(ctx context.Context, namespace, name string, change []byte) error {
	return c.rest.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("events").Name(name).Body(change).MaxRetries(0).Do(ctx).Error()
}
