// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	own "kubeproxy/platform/linux/nftables"
	"kubeproxy/test/netlab"
)

const (
	changeRounds = 2000 // samples of each small change
	manyServices = 1000 // that change at once
	manyRounds   = 20
	masqueradeBy = 14 // bit of the mark, as the proxy's default
)

// serviceOfRound spreads changes over all Services; two successive rounds change one
// Service back and forth.
func serviceOfRound(round, services int) int { return round / 2 * 7919 % services }

func chunksOf(list []nftables.SetElement) iter.Seq[[]nftables.SetElement] {
	return slices.Chunk(list, perMessage)
}

// pipeline is our proxy without a source: the caller adds objects, and each round runs at
// once.
type pipeline struct {
	tracker *track.Tracker
	backend reconcile.Backend
	// do, if set, is how to call backend in its network.
	do func(func() error) error
}

// newPipeline returns a pipeline to the nftables tables of n's node.
func newPipeline(n *network) (*pipeline, error) {
	r := &pipeline{tracker: track.New(track.Options{
		NodeName: ownNode, NodePorts: service.AnyAddress(),
		Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix(clusterCIDR)}},
	})}
	err := n.node.Do(func() (err error) {
		r.backend, err = own.New(service.IPv4, own.Options{MasqueradeBit: masqueradeBy})
		return err
	})
	return r, err
}

// feed adds all objects to the tracker and returns the duration of the calls, without the
// construction of the objects.
func (r *pipeline) feed(services int) (wall, cpu time.Duration) {
	const batch = 500
	for first := 0; first < services; first += batch {
		var list []*corev1.Service
		var parts []*discoveryv1.EndpointSlice
		for i := first; i < min(first+batch, services); i++ {
			list = append(list, newService(i))
			parts = append(parts, newSlice(i, numbers(perService)))
		}
		m := start()
		for i := range list {
			r.tracker.SetService(list[i])
			r.tracker.SetSlice(parts[i])
		}
		w, c := m.stop()
		wall, cpu = wall+w, cpu+c
	}
	return wall, cpu
}

// apply programs the latest snapshot and returns whether that took a change.
func (r *pipeline) apply(ctx context.Context) (changed bool, err error) {
	if r.do != nil {
		err = r.do(func() (err error) {
			changed, err = r.applyHere(ctx)
			return err
		})
		return changed, err
	}
	return r.applyHere(ctx)
}

func (r *pipeline) applyHere(ctx context.Context) (changed bool, err error) {
	p, err := r.backend.Plan(ctx, r.tracker.Latest())
	if err != nil || p.Empty() {
		return false, err
	}
	return true, p.Apply(ctx).Err
}

// measureOurs measures all figures of our own proxy.
func measureOurs(ctx context.Context, t task) (*figures, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer n.close()
	f := newFigures()
	r, err := newPipeline(n)
	if err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context, *figures, *pipeline) error{t.first, t.small, t.many} {
		if err := step(ctx, f, r); err != nil {
			return nil, err
		}
	}
	rss, err := peakRSS("self")
	if err != nil {
		return nil, err
	}
	f.set("rss", rss)
	if err := t.restart(ctx, f, n); err != nil {
		return nil, err
	}
	return f, t.connections(f, n)
}

// measureFew measures connections only.
func measureFew(ctx context.Context, t task) (*figures, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer n.close()
	r, err := newPipeline(n)
	if err != nil {
		return nil, err
	}
	r.feed(t.Services)
	r.tracker.Synced()
	if _, err := r.apply(ctx); err != nil {
		return nil, err
	}
	f := newFigures()
	return f, t.connections(f, n)
}

// first measures the first program and the memory it takes.
func (t task) first(ctx context.Context, f *figures, r *pipeline) error {
	t.logf("first program")
	heap := heapInUse()
	wall, cpu := r.feed(t.Services)
	f.seconds("feed.wall", wall)
	f.seconds("feed.cpu", cpu)
	runtime.GC() // the objects are no part of what follows
	kernel, err := t.kernelMemory()
	if err != nil {
		return err
	}
	m := start()
	r.tracker.Synced()
	if _, err := r.apply(ctx); err != nil {
		return fmt.Errorf("first program: %w", err)
	}
	f.usage("first", m)
	after, err := t.kernelMemory()
	if err != nil {
		return err
	}
	f.set("kernel", after-kernel)
	f.set("heap", (heapInUse()-heap)/float64(t.Services*perService))
	runtime.KeepAlive(r)
	return nil
}

// small measures the change of one Service at a time.
func (t task) small(ctx context.Context, f *figures, r *pipeline) error {
	t.logf("changes")
	for _, c := range changes() {
		var took []time.Duration
		for round := range t.pick(changeRounds, 20) {
			i := serviceOfRound(round, t.Services)
			to := c.a
			if round%2 == 1 {
				to = c.b
			}
			s := newSlice(i, to)
			began := time.Now()
			r.tracker.SetSlice(s)
			changed, err := r.apply(ctx)
			if err != nil {
				return fmt.Errorf("change one Service: %w", err)
			}
			if changed {
				took = append(took, time.Since(began))
			}
		}
		f.set(c.metric+".p50", quantile(took, 0.5))
		f.set(c.metric+".p99", quantile(took, 0.99))
	}
	return r.restore(ctx, t.Services)
}

// restore gives every Service its first endpoints.
func (r *pipeline) restore(ctx context.Context, services int) error {
	for i := range services {
		r.tracker.SetSlice(newSlice(i, numbers(perService)))
	}
	if _, err := r.apply(ctx); err != nil {
		return fmt.Errorf("restore all Services: %w", err)
	}
	return nil
}

// many measures the change of many Services at once: from the first call of the tracker
// to the commit.
func (t task) many(ctx context.Context, f *figures, r *pipeline) error {
	if t.Services < manyServices {
		f.note("With fewer than %d Services all of them change at once.", manyServices)
	}
	all := numbers(perService)
	var took []time.Duration
	for round := range t.pick(manyRounds, 2) {
		var parts []*discoveryv1.EndpointSlice
		for i := range min(manyServices, t.Services) {
			parts = append(parts, newSlice(i, all[:perService-1+round%2]))
		}
		began := time.Now()
		for _, s := range parts {
			r.tracker.SetSlice(s)
		}
		if _, err := r.apply(ctx); err != nil {
			return fmt.Errorf("change many Services: %w", err)
		}
		took = append(took, time.Since(began))
	}
	f.set("many", quantile(took, 0.5))
	return nil
}

// restart measures a second proxy that finds the table of the first.
func (t task) restart(ctx context.Context, f *figures, n *network) error {
	t.logf("restart")
	r, err := newPipeline(n)
	if err != nil {
		return err
	}
	r.feed(t.Services)
	runtime.GC()
	m := start()
	r.tracker.Synced()
	changed, err := r.apply(ctx)
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	f.usage("restart", m)
	if changed {
		return errNotEmpty
	}
	return nil
}

// apiServer is the part of an API server that a proxy needs: lists, and watches that
// deliver changed EndpointSlices. It keeps no history and ignores selectors.
type apiServer struct {
	lists map[string]list // by path

	mu       sync.Mutex
	version  int // of the latest object
	watchers map[chan []byte]string
	// delivered is when the last list with objects was sent, and the client's CPU time at
	// that moment.
	delivered time.Time
	deliverer func() time.Duration
	cpu       time.Duration
}

// list is a kind of object and the objects that exist at the start.
type list struct {
	version, kind string
	n             int
	item          func(i int) any
}

const (
	servicesPath = "/api/v1/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
	nodesPath    = "/api/v1/nodes"
	cidrsPath    = "/apis/networking.k8s.io/v1/servicecidrs"
)

// newAPIServer returns an apiServer with a number of Services. cpu returns the CPU time
// of the client.
func newAPIServer(services int, cpu func() time.Duration) *apiServer {
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: ownNode, ResourceVersion: "1"},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, // netlab's node-a
			{Type: corev1.NodeHostName, Address: netlab.NodeName},
		}},
	}
	all := numbers(perService)
	return &apiServer{
		version: 1, watchers: map[chan []byte]string{}, deliverer: cpu,
		lists: map[string]list{
			servicesPath: {"v1", "ServiceList", services, func(i int) any { return newService(i) }},
			slicesPath:   {"discovery.k8s.io/v1", "EndpointSliceList", services, func(i int) any { return newSlice(i, all) }},
			nodesPath:    {"v1", "NodeList", 1, func(int) any { return node }},
			cidrsPath:    {"networking.k8s.io/v1", "ServiceCIDRList", 0, nil},
		},
	}
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	watch, _ := strconv.ParseBool(q.Get("watch"))
	l, found := s.lists[r.URL.Path]
	switch {
	case r.Method == http.MethodPost: // an event
		w.WriteHeader(http.StatusCreated)
		// The response does not matter, so an error does not either.
		_, _ = io.Copy(w, r.Body)
	case !found && r.URL.Path == nodesPath+"/"+ownNode:
		_ = json.NewEncoder(w).Encode(s.lists[nodesPath].item(0))
	case !found:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case watch && q.Get("sendInitialEvents") == "true":
		// Clients then fall back to lists, as with old servers.
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case watch:
		s.watch(w, r)
	default:
		s.list(w, l)
		if r.URL.Path == servicesPath || r.URL.Path == slicesPath {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.delivered, s.cpu = time.Now(), s.deliverer()
		}
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: reason, Code: int32(code),
	})
}

func (s *apiServer) list(w http.ResponseWriter, l list) {
	fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1"},"items":[`, l.kind, l.version)
	encoder := json.NewEncoder(w)
	for i := range l.n {
		if i > 0 {
			fmt.Fprint(w, ",")
		}
		if encoder.Encode(l.item(i)) != nil {
			return // the client has gone
		}
	}
	fmt.Fprint(w, "]}")
	_ = http.NewResponseController(w).Flush()
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan []byte, manyServices) // room for all that ever arrive at once
	s.mu.Lock()
	s.watchers[events] = r.URL.Path
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, events)
	}()
	control := http.NewResponseController(w)
	for {
		if control.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			if _, err := w.Write(e); err != nil {
				return
			}
		}
	}
}

// update encodes changed EndpointSlices and returns a function that sends them to their
// watches.
func (s *apiServer) update(changed ...*discoveryv1.EndpointSlice) (send func(), err error) {
	var events [][]byte
	for _, c := range changed {
		s.version++
		c.ResourceVersion = strconv.Itoa(s.version)
		e, err := json.Marshal(map[string]any{"type": "MODIFIED", "object": c})
		if err != nil {
			return nil, err
		}
		events = append(events, append(e, '\n'))
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for w, path := range s.watchers {
			for i := 0; path == slicesPath && i < len(events); i++ {
				w <- events[i]
			}
		}
	}, nil
}

// whenDelivered returns when both lists were sent, and the client's CPU time then; false
// before that.
func (s *apiServer) whenDelivered() (time.Time, time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	watched := map[string]bool{} // a watch follows its list
	for _, path := range s.watchers {
		watched[path] = true
	}
	ok := !s.delivered.IsZero() && watched[servicesPath] && watched[slicesPath]
	return s.delivered, s.cpu, ok
}

// forget makes whenDelivered wait for the next client.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delivered = time.Time{}
	clear(s.watchers)
}

// network is a row of a client, a node and a server in namespaces of their own. The
// server answers at every endpoint's address.
type network struct {
	lab            *netlab.Lab
	node           *netlab.Host
	client, server *netlab.Host
}

func newNetwork() (*network, error) {
	lab, err := netlab.New(netlab.Config{Pods: []string{"client", "server"}})
	if err != nil {
		return nil, fmt.Errorf("build network: %w", err)
	}
	n := &network{lab: lab, node: lab.Node, client: lab.Host("client"), server: lab.Host("server")}
	if err := n.routeEndpoints(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *network) close() error { return n.lab.Close() }

// routeEndpoints makes all endpoints' addresses local on the server.
func (n *network) routeEndpoints() error {
	all := &net.IPNet{IP: endpointPrefix.Addr().AsSlice(), Mask: net.CIDRMask(endpointPrefix.Bits(), 32)}
	err := n.node.Do(func() error { return netlink.RouteAdd(&netlink.Route{Dst: all, Gw: n.server.IPv4.AsSlice()}) })
	if err != nil {
		return fmt.Errorf("route endpoints to the server: %w", err)
	}
	err = n.server.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: all, Table: unix.RT_TABLE_LOCAL,
			Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST,
		})
	})
	if err != nil {
		return fmt.Errorf("give the server the endpoints' addresses: %w", err)
	}
	return nil
}

// sink makes the server read everything it receives, until the process ends.
func (n *network) sink(ctx context.Context) error {
	l, err := n.server.Listen(ctx, "tcp", fmt.Sprintf(":%d", sinkPort))
	if err != nil {
		return fmt.Errorf("start sink: %w", err)
	}
	go netlab.Serve(l, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	return nil
}

// shortenConntrackTimeouts keeps closed connections from filling the node's conntrack
// table, which has room for some hundred thousand: the bench makes more in the ten
// seconds of the default timeout of closed connections. See
// nf_conntrack_tcp_timeout_close in
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html
func (n *network) shortenConntrackTimeouts() error {
	const file = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close"
	return n.node.Do(func() error {
		err := os.WriteFile(file, []byte("1"), 0)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
}

// firstMiddleLast are the Services, of n, that connections use.
func firstMiddleLast(n int) [3]int { return [3]int{0, n / 2, n - 1} }

// target is the destination of the client's connections.
type target struct {
	name string
	from *network
	to   netip.AddrPort
	// among, if set, returns the address for the i-th connection.
	among func(i int) netip.Addr
	// before, if set, is called before each burst.
	before func()
	// cgroup, if not empty, is the folder of the cgroup that the client is in.
	cgroup string
}

const (
	perService  = 10     // endpoints of each Service
	maxServices = 100000 // as many as have addresses below
	servicePort = 80
	targetPort  = 8080
	clusterCIDR = "10.244.0.0/16" // of the clients, see netlab
	ownNode     = "node-7"        // one of the fifty that endpoints run on
)

var (
	// endpointPrefix contains the address of every endpoint: the first ones in its lower
	// half, their replacements in the upper.
	endpointPrefix = netip.MustParsePrefix("10.128.0.0/11")
	spareBase      = netip.MustParseAddr("10.144.0.0")
	clusterBase    = netip.MustParseAddr("10.96.0.1")
)

// plus returns the n-th address after a.
func plus(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	sum := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	sum += uint32(n)
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

func clusterIP(i int) netip.Addr { return plus(clusterBase, i) }

// endpointIP returns the address of endpoint j of Service i. Numbers from perService on
// are replacements.
func endpointIP(i, j int) netip.Addr {
	if j >= perService {
		return plus(spareBase, i*perService+j-perService)
	}
	return plus(endpointPrefix.Addr(), i*perService+j)
}

func namespaceOf(i int) string { return fmt.Sprintf("ns-%d", i%100) }
func nameOf(i int) string      { return fmt.Sprintf("service-%d", i) }

// commentOf is the comment of Service i in a listing.
func commentOf(i int) string { return namespaceOf(i) + "/" + nameOf(i) + ":http" }

// newService returns Service i. Every object is a new one, as those of a watch are.
func newService(i int) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespaceOf(i), Name: nameOf(i), ResourceVersion: "1"},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  clusterIP(i).String(),
			ClusterIPs: []string{clusterIP(i).String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: strings.Clone("http"), Port: servicePort, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// newSlice returns the EndpointSlice of Service i with the endpoints of the given
// numbers.
func newSlice(i int, numbers []int) *discoveryv1.EndpointSlice {
	name, port, proto := strings.Clone("http"), int32(targetPort), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespaceOf(i), Name: nameOf(i) + "-x7k2p", ResourceVersion: "1",
			Labels: map[string]string{discoveryv1.LabelServiceName: nameOf(i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
	}
	yes, no := true, false
	for _, j := range numbers {
		node, zone := fmt.Sprintf("node-%d", (i+j*7)%50), fmt.Sprintf("zone-%d", j%3)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{endpointIP(i, j).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &zone,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespaceOf(i), Name: fmt.Sprintf("%s-%d", nameOf(i), j)},
		})
	}
	return s
}

// numbers returns 0 to n-1.
func numbers(n int) []int {
	var list []int
	for j := range n {
		list = append(list, j)
	}
	return list
}

// change is a kind of change between two lists of endpoints of a Service.
type change struct {
	metric string
	a, b   []int // the two lists, as numbers
}

// changes all begin and end with the first endpoints of a Service, except the one that
// would not cross a power of two then.
func changes() []change {
	all := numbers(perService)
	replaced := slices.Clone(all)
	replaced[perService-1] = perService
	return []change{
		{"replace", replaced, all},
		{"scale", numbers(perService - 1), all},
		{"cross", numbers(8), numbers(9)},
	}
}
