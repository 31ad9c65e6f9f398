// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
)

// request is a call of a method of Driver.
type request struct {
	operation string // one of Operations, empty for PortsLeft, which does not call HNS
	of        any    // the argument
}

// String returns "create load balancer tcp 10.96.0.10:80".
func (r request) String() string {
	verb := strings.ReplaceAll(r.operation, "_", " ")
	switch of := r.of.(type) {
	case LoadBalancer:
		return verb + " " + of.Address.String()
	case Endpoint:
		return verb + " " + of.Name
	case string:
		return verb + " " + of
	case service.Address:
		return "look for dynamic ports"
	}
	return "list all objects"
}

// interception makes a call with do, or answers itself with the type of the method's result.
type interception func(ctx context.Context, r request, do func() (any, error)) (any, error)

// intercept returns a Driver that leaves the calls of d to by.
func intercept(d Driver, by interception) Driver { return &intercepted{d, by} }

type intercepted struct {
	driver Driver
	by     interception
}

// through returns the answer to r, the zero value for nil.
func through[T any](ctx context.Context, by interception, r request, do func() (T, error)) (T, error) {
	answer, err := by(ctx, r, func() (any, error) { return do() })
	value, _ := answer.(T)
	return value, err
}

func (i *intercepted) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	r := request{opList, what}
	if what == Endpoints {
		r.operation = opListEndpoints
	}
	return through(ctx, i.by, r, func() (Listing, error) { return i.driver.List(ctx, what) })
}

func (i *intercepted) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	return through(ctx, i.by, request{opCreateEndpoint, e}, func() (Endpoint, error) { return i.driver.CreateEndpoint(ctx, e) })
}

func (i *intercepted) HasEndpoint(ctx context.Context, id string) (bool, error) {
	return through(ctx, i.by, request{opFindEndpoint, id}, func() (bool, error) { return i.driver.HasEndpoint(ctx, id) })
}

func (i *intercepted) DeleteEndpoint(ctx context.Context, id string) error {
	_, err := through(ctx, i.by, request{opDeleteEndpoint, id}, func() (any, error) { return nil, i.driver.DeleteEndpoint(ctx, id) })
	return err
}

func (i *intercepted) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	return through(ctx, i.by, request{CreateBalancer, lb}, func() (LoadBalancer, error) { return i.driver.CreateLoadBalancer(ctx, lb) })
}

func (i *intercepted) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	return through(ctx, i.by, request{ChangeBalancer, lb}, func() (LoadBalancer, error) { return i.driver.UpdateLoadBalancer(ctx, lb) })
}

func (i *intercepted) PortsLeft(ctx context.Context, k service.Address) (bool, error) {
	return through(ctx, i.by, request{"", k}, func() (bool, error) { return i.driver.PortsLeft(ctx, k) })
}

func (i *intercepted) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	_, err := through(ctx, i.by, request{DeleteBalancer, lb}, func() (any, error) { return nil, i.driver.DeleteLoadBalancer(ctx, lb) })
	return err
}

// dryRun returns a Driver whose calls succeed and have no effect. HNS seems to hold l.
func dryRun(l Listing) Driver {
	created := 0
	id := func() string {
		created++
		return fmt.Sprintf("new-%08d", created)
	}
	return intercept(nil, func(_ context.Context, r request, _ func() (any, error)) (any, error) {
		switch of := r.of.(type) {
		case ObjectKinds:
			return l, nil
		case Endpoint:
			of.ID = id()
			return of, nil
		case LoadBalancer:
			if r.operation == CreateBalancer {
				of.ID = id()
			}
			return of, nil
		}
		return true, nil
	})
}

// Call is a completed call to HNS.
type Call struct {
	Operation string // one of Operations
	Took      time.Duration
	Err       error
	// Balancer is the load balancer that the call concerned, otherwise nil.
	Balancer *LoadBalancer
}

// The operations. Those that change load balancers are exported.
const (
	opList           = "list"
	opListEndpoints  = "list_endpoints"
	opFindEndpoint   = "find_endpoint"
	opCreateEndpoint = "create_endpoint"
	opDeleteEndpoint = "delete_endpoint"

	CreateBalancer = "create_load_balancer"
	ChangeBalancer = "change_load_balancer"
	DeleteBalancer = "delete_load_balancer"
)

// Operations lists all operations. A whole listing counts as one call, though HNS gets several.
var Operations = []string{
	opList, opListEndpoints, opFindEndpoint, opCreateEndpoint, opDeleteEndpoint, CreateBalancer, ChangeBalancer, DeleteBalancer,
}

// classes are the names of the error classes.
var classes = []struct {
	err  error
	name string
}{
	{ErrNotFound, "not_found"}, {ErrNotRunning, "not_running"}, {ErrExists, "exists"},
	{ErrBusy, "busy"}, {ErrRefused, "refused"}, {ErrNotInstalled, "not_installed"},
}

// Classes returns the names of the error classes.
func Classes() []string {
	var names []string
	for _, c := range classes {
		names = append(names, c.name)
	}
	return append(names, otherError)
}

const otherError = "other"

// Class returns the class of the call's error, "" for success.
func (c *Call) Class() string {
	if c.Err == nil {
		return ""
	}
	for _, x := range classes {
		if errors.Is(c.Err, x.err) {
			return x.name
		}
	}
	return otherError
}

// Cause returns the cause of the call's error as kube-proxy's metrics name it, "" without.
func (c *Call) Cause() string {
	var e *Error
	if c.Err == nil {
		return ""
	}
	if errors.As(c.Err, &e) {
		switch e.Code {
		case 0x803b0001:
			return "network_not_found"
		case 0x803b0013:
			return "port_already_exists"
		case notImplemented:
			return "not_implemented"
		case 0x803b001e, 0x803b002f:
			return "invalid_ip"
		}
	}
	return otherError
}

// Metered returns a Driver that calls report after each call of d.
func Metered(d Driver, report func(Call)) Driver {
	return intercept(d, func(_ context.Context, r request, do func() (any, error)) (any, error) {
		began := time.Now()
		answer, err := do()
		c := Call{Operation: r.operation, Took: time.Since(began), Err: err}
		if lb, is := r.of.(LoadBalancer); is {
			c.Balancer = &lb
		}
		if r.operation != "" {
			report(c)
		}
		return answer, err
	})
}

// How long HNS may take before a call is reported. Listings make several calls for each object.
// With many load balancers some take half a minute (kubernetes/kubernetes#109162).
const (
	slowCallThreshold = 10 * time.Second
	slowListThreshold = time.Minute
	// maxListProgress is the longest time in which a listing, seen from outside, may
	// still make progress: ten thousand objects on a slow HNS.
	maxListProgress      = 20 * time.Minute
	listProgressInterval = 10 * time.Second
)

// WithTimeout returns a Driver whose calls end with their context, with an unknown result if HNS
// did not answer. reportSlow gets a text while HNS does not answer, then "". reportProgress is
// called as long as work progresses.
func WithTimeout(d Driver, reportSlow func(text string), reportProgress func()) Driver {
	return intercept(d, (&timeouts{reportSlow: reportSlow, reportProgress: reportProgress}).await)
}

type timeouts struct {
	reportSlow     func(text string)
	reportProgress func()

	mu        sync.Mutex
	lateCalls int // calls that reportSlow reported
}

// reportLate reports one more late call, or with "" one less.
func (t *timeouts) reportLate(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text != "" {
		t.lateCalls++
		t.reportSlow(text)
	} else if t.lateCalls--; t.lateCalls == 0 {
		t.reportSlow("")
	}
}

// unawaited is the key of a context in which no round waits for the call.
type unawaited struct{}

// withoutWaiting returns ctx for a call that no round waits for.
func withoutWaiting(ctx context.Context) context.Context {
	return context.WithValue(ctx, unawaited{}, true)
}

// consequence describes what a late call prevents.
func consequence(ctx context.Context) string {
	if ctx.Value(unawaited{}) != nil {
		return "what others change in HNS is not seen meanwhile; changes of Services are programmed"
	}
	return "nothing can be programmed meanwhile"
}

// await returns the result of do, unless ctx ends before.
func (t *timeouts) await(ctx context.Context, r request, do func() (any, error)) (any, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: left undone: %w", r, ctx.Err())
	}
	type answer struct {
		value any
		err   error
	}
	answers := make(chan answer, 1) // HNS may answer after await returned
	go func() {
		value, err := do()
		answers <- answer{value, err}
	}()
	after := slowCallThreshold
	var beat <-chan time.Time
	if _, listing := r.of.(ObjectKinds); listing {
		after = slowListThreshold
		beats := time.NewTicker(listProgressInterval)
		defer beats.Stop()
		beat = beats.C
	}
	begun := time.Now()
	late := time.NewTimer(after)
	defer late.Stop()
	for reported := false; ; {
		select {
		case a := <-answers:
			if reported {
				t.reportLate("")
			}
			if a.err == nil {
				t.reportProgress()
			}
			return a.value, a.err
		case <-beat:
			if time.Since(begun) < maxListProgress {
				t.reportProgress()
			}
		case <-late.C:
			reported = true
			t.reportLate(fmt.Sprintf("HNS has not answered for %s (%s), and %s; if it stays so, restart it: Restart-Service hns", after, r, consequence(ctx)))
		case <-ctx.Done():
			if reported {
				t.reportLate("")
			}
			return nil, fmt.Errorf("%s: HNS has not answered: %w", r, ctx.Err())
		}
	}
}

// meter counts the calls to HNS of all families.
type meter struct {
	duration *prometheus.HistogramVec
	failures *prometheus.CounterVec
	// balancers counts load balancers by the operation that failed, under kube-proxy's names.
	balancers map[string]*prometheus.CounterVec
}

func newMeter() *meter {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: metrics.Namespace, Name: name, Help: help}, labels)
	}
	balancer := func(what, help string) *prometheus.CounterVec {
		return counter("sync_proxy_rules_winkernel_lb_"+what+"_failures_total", help, "ip_family", "lb_type", "error")
	}
	m := &meter{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metrics.Namespace, Name: "hns_call_duration_seconds", Help: "Time until the Host Networking Service answered.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10), // listing can take minutes
		}, []string{"operation"}),
		failures: counter("hns_call_failures_total", "Answers of the Host Networking Service other than success, by class of error.", "operation", "class"),
		balancers: map[string]*prometheus.CounterVec{
			CreateBalancer: balancer("create", "Load balancers that could not be made."),
			ChangeBalancer: balancer("update", "Load balancers that could not be changed in place."),
			DeleteBalancer: balancer("delete", "Load balancers that could not be deleted."),
		},
	}
	for _, o := range Operations {
		m.duration.WithLabelValues(o)
		for _, c := range Classes() {
			m.failures.WithLabelValues(o, c)
		}
	}
	return m
}

func (m *meter) collectors() []prometheus.Collector {
	all := []prometheus.Collector{m.duration, m.failures}
	for _, c := range m.balancers {
		all = append(all, c)
	}
	return all
}

func (m *meter) call(c Call) {
	m.duration.WithLabelValues(c.Operation).Observe(c.Took.Seconds())
	if c.Err == nil {
		return
	}
	m.failures.WithLabelValues(c.Operation, c.Class()).Inc()
	failed := m.balancers[c.Operation]
	// Deleting an object that does not exist is a success.
	if failed == nil || c.Operation == DeleteBalancer && c.Class() == "not_found" {
		return
	}
	failed.WithLabelValues(c.Balancer.Family.String(), c.Balancer.Use(), c.Cause()).Inc()
}
