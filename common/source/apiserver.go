// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
)

// APIServer is a Source that lists and watches objects of a Kubernetes API server. It stores names
// alone; the Sink stores the rest. An outage deletes nothing.
type APIServer struct {
	// Config is how to reach the API server, including rate limits and content type.
	Config   *rest.Config
	NodeName string // the Node to deliver
	// ProxyName is the label value of the Services to deliver, empty for those without.
	ProxyName string
	// Report, if set, is called for each failure to list or watch, a *ReadError, which is retried.
	// Report, Contact, WatchTimedOut and Restored may be called from several goroutines.
	Report func(error)
	// Contact, if set, is called at each sign that the API server is alive, with the kind
	// ("services", "endpointslices", "nodes", "servicecidrs") that was listed, whose watch was
	// granted or sent an event: at least a bookmark per minute. It must return at once.
	Contact func(kind string)
	// WatchTimedOut, if set, is called for each watch that sent nothing for WatchTimeout.
	WatchTimedOut func(kind string)
	// Restored, if set, is called when the resource version of a kind goes backwards, as
	// after etcd was restored from a backup. All kinds are then listed again.
	Restored func(kind, before, now string)
	// WatchTimeout bounds the wait for an answer and the silence of a watch. 0 means
	// three minutes. API servers send a bookmark every minute.
	WatchTimeout time.Duration

	limit   sync.Once
	limiter flowcontrol.RateLimiter
	pace    *pacer
	history *history

	mu      sync.Mutex
	clients *clients // those in use
}

// clients are the clients for one connection, by API group.
type clients struct{ core, discovery, networking *rest.RESTClient }

const (
	// nodeGrace bounds how long the first snapshot waits for optional objects: the own
	// Node, which the service account may not be allowed to read, and ServiceCIDRs.
	nodeGrace = 30 * time.Second
	// defaultWatchTimeout bounds how long a silent connection is trusted. The HTTP/2 client detects
	// a dead peer with pings (golang.org/x/net/http2 Transport.ReadIdleTimeout), but not one that
	// keeps the connection and does not answer.
	defaultWatchTimeout = 3 * time.Minute
	// maxAbsentPause is the longest pause for a kind that the API server lacks or does not permit.
	maxAbsentPause = 10 * time.Minute
	// minAbsentPause is the first such pause.
	minAbsentPause = 5 * time.Second
	// minRelistPause and maxRelistPause bound the pause before everything is listed again because
	// it may be outdated, without up to as much by chance.
	minRelistPause, maxRelistPause = time.Second, 30 * time.Second
)

// ReadError is a failure to list or watch one kind.
type ReadError struct {
	Kind string // as for APIServer.Contact
	// Optional means that the API server lacks the kind or does not permit it: nothing waits.
	Optional bool
	Err      error
}

// Error implements error.
func (e *ReadError) Error() string { return "watch " + e.Kind + " at the API server: " + e.Err.Error() }

// Unwrap returns the error of the API client.
func (e *ReadError) Unwrap() error { return e.Err }

// Run lists and watches until ctx ends.
func (a *APIServer) Run(ctx context.Context, sink Sink) error {
	a.limits()
	if err := a.start(); err != nil {
		return err
	}
	s := &serial{sink: sink}
	feeds := []*feed{a.services(s), a.slices(s), a.node(s), a.serviceCIDRs(s)}
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range feeds {
		f.pace, f.history = a.pace, a.history
		group.Go(func() error {
			a.run(ctx, f)
			return nil
		})
	}
	group.Go(func() error {
		waitFor(ctx, feeds)
		if ctx.Err() == nil {
			sink.Synced()
		}
		return nil
	})
	return group.Wait()
}

// start makes the first clients, unless Use has made others.
func (a *APIServer) start() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.clients != nil {
		return nil
	}
	all, err := a.newClients(a.Config)
	a.clients = all
	return err
}

// Use reads through another connection from now on, once the API server answers there. Everything is listed
// again, as it may be another cluster's, and what the Sink has stays until then. After an error nothing has
// changed.
func (a *APIServer) Use(ctx context.Context, to *rest.Config) error {
	a.limits()
	all, err := a.newClients(to)
	if err != nil {
		return err
	}
	first := requests{client: all.core, kind: kindServices, selects: func(o *metav1.ListOptions) { o.Limit = 1 }}
	if err := first.request(metav1.ListOptions{ResourceVersion: "0"}).Do(ctx).Into(&corev1.ServiceList{}); err != nil {
		return &ReadError{Kind: kindServices, Err: err}
	}
	a.mu.Lock()
	a.clients = all
	a.mu.Unlock()
	a.history.forget()
	return nil
}

// inUse returns the clients in use.
func (a *APIServer) inUse() *clients {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.clients
}

// connect gives f the present client. It closes the connection of an earlier one, in which nothing is open
// any more when the last kind leaves it.
func (a *APIServer) connect(f *feed) {
	c := f.of(a.inUse())
	if old, is := f.from.client.(*rest.RESTClient); is && old != c {
		utilnet.CloseIdleConnectionsFor(old.Client.Transport)
	}
	f.from.client = c
}

// waitFor returns when feeds delivered what existed at the start, optional ones within nodeGrace.
func waitFor(ctx context.Context, feeds []*feed) {
	grace := time.NewTimer(nodeGrace)
	defer grace.Stop()
	for _, f := range feeds {
		expired := grace.C
		if f.kind != kindNodes && f.kind != kindCIDRs {
			expired = nil
		}
		select {
		case <-f.listed:
		case <-expired:
			grace.Reset(0) // also for the next optional kind
		case <-ctx.Done():
		}
	}
}

// Kinds as in paths of the API.
const (
	kindServices = "services"
	kindSlices   = "endpointslices"
	kindNodes    = "nodes"
	kindCIDRs    = "servicecidrs"
)

// limits returns the rate limiter that all clients share: the limits apply to this
// process, not to each API group. The library does not apply them to watches.
func (a *APIServer) limits() flowcontrol.RateLimiter {
	a.limit.Do(func() { a.limiter, a.pace, a.history = a.newLimiter(), newPacer(), newHistory(a.Restored) })
	return a.limiter
}

func (a *APIServer) newLimiter() flowcontrol.RateLimiter {
	qps, burst := cmp.Or(a.Config.QPS, rest.DefaultQPS), cmp.Or(a.Config.Burst, rest.DefaultBurst)
	if qps < 0 {
		return flowcontrol.NewFakeAlwaysRateLimiter()
	}
	return flowcontrol.NewTokenBucketRateLimiter(qps, burst)
}

func (a *APIServer) newClients(to *rest.Config) (*clients, error) {
	limits := a.limits()
	core, err1 := newClient(to, corev1.SchemeGroupVersion, "/api", limits)
	discovery, err2 := newClient(to, discoveryv1.SchemeGroupVersion, "/apis", limits)
	networking, err3 := newClient(to, networkingv1.SchemeGroupVersion, "/apis", limits)
	return &clients{core, discovery, networking}, cmp.Or(err1, err2, err3)
}

// newClient returns a client for one API group. It decodes only the kinds that a Sink gets.
func newClient(to *rest.Config, gv schema.GroupVersion, path string, limits flowcontrol.RateLimiter) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("set up the API client: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := rest.CopyConfig(to)
	c.RateLimiter = limits
	NoteRetryAfter(c)
	c.APIPath, c.GroupVersion = path, &gv
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("set up the API client: %w", err)
	}
	return client, nil
}

// Label selectors for what the API server delivers.
const (
	proxyName = "service.kubernetes.io/service-proxy-name"
	headless  = "!" + corev1.IsHeadlessService
)

// ownServices returns the selector for the Services of this proxy.
func (a *APIServer) ownServices() string {
	if a.ProxyName == "" {
		return "!" + proxyName
	}
	return proxyName + "=" + a.ProxyName
}

func (a *APIServer) services(s *serial) *feed {
	f := a.feed(kindServices, &corev1.Service{}, func(c *clients) *rest.RESTClient { return c.core }, func(o *metav1.ListOptions) {
		o.LabelSelector = a.ownServices()
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()
	})
	f.set = func(o any) { s.do(func(to Sink) { to.SetService(o.(*corev1.Service)) }) }
	f.remove = func(n types.NamespacedName) { s.do(func(to Sink) { to.DeleteService(n) }) }
	return f
}

func (a *APIServer) slices(s *serial) *feed {
	f := a.feed(kindSlices, &discoveryv1.EndpointSlice{}, func(c *clients) *rest.RESTClient { return c.discovery }, func(o *metav1.ListOptions) {
		o.LabelSelector = headless
	})
	f.set = func(o any) { s.do(func(to Sink) { to.SetSlice(o.(*discoveryv1.EndpointSlice)) }) }
	f.remove = func(n types.NamespacedName) { s.do(func(to Sink) { to.DeleteSlice(n) }) }
	return f
}

func (a *APIServer) node(s *serial) *feed {
	f := a.feed(kindNodes, &corev1.Node{}, func(c *clients) *rest.RESTClient { return c.core }, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", a.NodeName).String()
	})
	f.set = func(o any) { s.do(func(to Sink) { to.SetNode(o.(*corev1.Node)) }) }
	f.remove = func(types.NamespacedName) { s.do(func(to Sink) { to.DeleteNode() }) }
	return f
}

func (a *APIServer) serviceCIDRs(s *serial) *feed {
	f := a.feed(kindCIDRs, &networkingv1.ServiceCIDR{}, func(c *clients) *rest.RESTClient { return c.networking }, func(*metav1.ListOptions) {})
	f.optional = true // API servers before 1.33 may lack them
	f.set = func(o any) { s.do(func(to Sink) { to.SetServiceCIDR(o.(*networkingv1.ServiceCIDR)) }) }
	f.remove = func(n types.NamespacedName) { s.do(func(to Sink) { to.DeleteServiceCIDR(n.Name) }) }
	return f
}

// serial serializes the calls of several feeds to the Sink.
type serial struct {
	mu   sync.Mutex
	sink Sink
}

func (s *serial) do(call func(Sink)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call(s.sink)
}

// feed returns a feed of one kind, without its callbacks.
func (a *APIServer) feed(
	kind string, prototype runtime.Object, of func(*clients) *rest.RESTClient, selects func(*metav1.ListOptions),
) *feed {
	return &feed{
		kind: kind, prototype: prototype, of: of,
		from:    requests{kind: kind, selects: selects},
		contact: a.Contact,
		known:   map[types.NamespacedName]bool{},
		listed:  make(chan struct{}),
	}
}

// requests lists and watches one kind, without the client's own retries: ten, which take two
// minutes before an error. Then it returns an empty watch for one that was never granted:
// kubernetes/kubernetes#102107. The pacer does what they would for Retry-After.
type requests struct {
	client  cache.Getter
	kind    string
	selects func(*metav1.ListOptions)
}

func (r requests) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return r.request(o).Do(ctx).Get()
}

func (r requests) watch(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	o.Watch = true
	return r.request(o).Watch(ctx)
}

func (r requests) request(o metav1.ListOptions) *rest.Request {
	r.selects(&o)
	return r.client.Get().Resource(r.kind).VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0)
}

// pacer spaces the requests for kinds that cannot be read. Each kind has intervals of its
// own, but the first one that can be read again shortens those of the others. The
// library's pauses grow to a minute and know nothing of each other: after an outage,
// endpoints stay old for so long, or a proxy that has just started waits for its last kind.
type pacer struct {
	mu      sync.Mutex
	failing map[string]*outage   // by kind
	asked   map[string]time.Time // when a kind was asked for last
	barred  map[string]time.Time // until when the API server wants no request for a kind
	over    chan struct{}        // closed when a kind can be read again
	overAt  time.Time            // when that was last
}

// outage is a time in which a kind cannot be read.
type outage struct {
	wait.Backoff
	since time.Time
}

// Intervals begin and grow as the library's pauses: client-go tools/cache/reflector.go.
const (
	firstInterval = 400 * time.Millisecond
	lastInterval  = 30 * time.Second // and up to twice as much, by chance
	// lastSpread bounds the random delay of a kind after another one can be read. It grows with the
	// outage, as from a long one all nodes return together.
	lastSpread = 10 * time.Second
)

// floor is the library's own pause. It bounds what counts as no failure, as expired versions.
var floor = wait.Backoff{Duration: firstInterval, Jitter: 1}

func newPacer() *pacer {
	return &pacer{
		failing: map[string]*outage{}, asked: map[string]time.Time{}, barred: map[string]time.Time{},
		over: make(chan struct{}),
	}
}

// wait returns when the kind may be asked for: at once, if its last answer took long.
func (p *pacer) wait(ctx context.Context, kind string) {
	p.mu.Lock()
	due, barred := p.barred[kind], p.barred[kind]
	var over chan struct{}
	var since time.Time
	early := false
	if o := p.failing[kind]; o != nil {
		over, since = p.over, o.since
		early = p.overAt.After(p.asked[kind]) // during the library's own pause
		if at := p.asked[kind].Add(o.Step()); at.After(due) {
			due = at
		}
	}
	p.mu.Unlock()
	if early || sleep(ctx, time.Until(due), over) {
		spread := rand.N(min(time.Since(since)/10, lastSpread) + 1)
		sleep(ctx, min(time.Until(due), max(time.Until(barred), spread)), nil)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[kind] = time.Now()
}

// sleep returns after d, at the end of ctx, or when over is closed, which is early.
func sleep(ctx context.Context, d time.Duration, over <-chan struct{}) (early bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-over:
		return true
	}
	return false
}

// bar delays the next request for a kind by d, as the API server asked, and by a random
// part of that, because it asks all nodes alike.
func (p *pacer) bar(kind string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d > 0 {
		p.barred[kind] = time.Now().Add(wait.Jitter(d, 0.5))
	}
}

// failed records a failure to read a kind.
func (p *pacer) failed(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing[kind] == nil {
		pauses := wait.Backoff{Duration: firstInterval, Cap: lastInterval, Factor: 2, Jitter: 1, Steps: math.MaxInt}
		p.failing[kind] = &outage{pauses, time.Now()}
	}
}

// read records that a kind can be read.
func (p *pacer) read(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing[kind] == nil {
		return
	}
	delete(p.failing, kind)
	close(p.over)
	p.over, p.overAt = make(chan struct{}), time.Now()
}

// forget makes the next request for a kind come at once, if the API server wants no pause.
func (p *pacer) forget(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failing, kind)
}

// MaxRetryAfter bounds what RetryAfter returns. API servers ask for seconds. A mistake of a proxy on
// the way, or of a clock, must not keep a node from the cluster for longer.
const MaxRetryAfter = 10 * time.Minute

// NoteRetryAfter makes clients of c note what answers ask for.
func NoteRetryAfter(c *rest.Config) {
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return retryReader{next} })
}

type retryKey struct{}

// WithRetryAfter returns a context for one request, which RetryAfter reads afterwards.
func WithRetryAfter(ctx context.Context) context.Context {
	return context.WithValue(ctx, retryKey{}, new(time.Duration))
}

// RetryAfter returns how long the answer to the request with ctx, whose error is err, asks to
// wait before the next request. It is 0 if the answer does not ask.
func RetryAfter(ctx context.Context, err error) time.Duration {
	var asked time.Duration
	if noted, is := ctx.Value(retryKey{}).(*time.Duration); is {
		asked = *noted
	}
	if seconds, is := apierrors.SuggestsClientDelay(err); is {
		asked = max(asked, time.Duration(seconds)*time.Second)
	}
	return min(asked, MaxRetryAfter)
}

// retryReader notes what answers ask for. It implements http.RoundTripper and utilnet.RoundTripperWrapper.
type retryReader struct{ next http.RoundTripper }

var _ utilnet.RoundTripperWrapper = retryReader{}

func (r retryReader) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.next.RoundTrip(request)
	noted, is := request.Context().Value(retryKey{}).(*time.Duration)
	if is && answer != nil && answer.StatusCode >= http.StatusBadRequest {
		*noted = retryInHeader(answer.Header, time.Now())
	}
	return answer, err
}

func (r retryReader) WrappedRoundTripper() http.RoundTripper { return r.next }

// retryInHeader returns what a header asks for. The client's own retries would obey that,
// but report nothing meanwhile, and they do not know the form with a date
// (https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3). A date is compared with the server's own clock
// if the header has that, so a wrong clock of this node does not matter.
func retryInHeader(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second
	}
	until, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if server, err := http.ParseTime(h.Get("Date")); err == nil {
		now = server
	}
	return max(0, until.Sub(now))
}
