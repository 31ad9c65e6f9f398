// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package track applies the rules of Kubernetes that no backend should repeat. Services,
// EndpointSlices, ServiceCIDRs and this node's Node go in. Snapshots of what the node
// should forward come out, with Problems for content that cannot be used. A source
// supplies the objects, and a backend decides how to forward.
package track

import (
	"cmp"
	"container/heap"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
)

// Options are the operator's settings. Reconfigure changes some of them later.
type Options struct {
	NodeName string       // this node, as the API names it
	NodeIPs  []netip.Addr // come before the Node's own, family by family
	Pods     service.LocalPods
	// PodsFromNode takes local pods' prefixes from the Node, without one none, instead of Pods.
	PodsFromNode bool
	NodePorts    []netip.Prefix // see service.Node
	// NodePortsPrimary adds the node's primary addresses, as far as known, to NodePorts.
	NodePortsPrimary bool
	// NodePortsEverywhere is as in service.Node.
	NodePortsEverywhere bool
	MasqueradeAll       bool
	IgnoreExternalIPs   bool // leave out spec.externalIPs of Services
	// ProxyName is the Services' LabelProxyName, empty for those without the label.
	ProxyName string
	// Listed fills service.Port.Listed.
	Listed bool
	// SilentEndpoints holds for Services without AnnotationSilent.
	SilentEndpoints Silent
	// Selection holds for Services without AnnotationSelection, with tables of so many slots.
	Selection      Selection
	SelectionSlots uint16
	// DirectReturn holds for Services without AnnotationDirectReturn.
	DirectReturn bool
}

// Listener is notified of what a Tracker finds. Functions that are nil are left out.
type Listener struct {
	// Changed is called when there may be a new snapshot or problem. It must return at once.
	Changed func()
	// Found is called from within Latest with the problems that appear, in their order.
	Found func([]Problem)
}

// Tracker is a source.Sink that publishes snapshots. Latest applies the API's rules to what changed
// since the last one. It is safe for concurrent use.
type Tracker struct {
	options Options
	name    string // of the node, normalized

	mu        sync.Mutex
	listeners []Listener
	services  map[types.NamespacedName]*serviceState
	slices    map[types.NamespacedName]*slice
	loose     map[types.NamespacedName]int          // slices that name no Service, with their ready endpoints
	left      map[types.NamespacedName][]netip.Addr // addresses that load balancers handle themselves
	claims    claims
	interner  interner
	nodeInfo  *nodeInfo
	host      Host
	cidrs     map[string]*serviceCIDR // by the name of the ServiceCIDR
	misplaced misplaced
	silent    map[service.Address]time.Time // see SetSilent
	synced    bool
	unread    int // see source.Sink
	// batching means that a Batch runs, batchChanged that it changed something, or delayed Latest.
	batching, batchChanged bool

	dirty     []*serviceState
	nodeDirty bool // the node may have changed
	latest    *service.Snapshot
	chooser   chooser
	// problems are those reported that still exist, by Service, the own Node's under the zero name.
	problems map[types.NamespacedName][]Problem
	// reasons are why Services that exist are not served at all.
	reasons    map[types.NamespacedName]string
	departures [2]uint64 // by family, see Departures
}

// serviceState is a Service: its object, if there is one, and its slices, maybe earlier.
type serviceState struct {
	name    types.NamespacedName
	created int64 // seconds
	// want holds the Ports that the Service specifies, without endpoints, have those in the latest
	// snapshot. One that got all its frontends is in both, to save memory.
	want, have []*service.Port
	slices     []*slice // by name
	notes      []note
	// misplaced counts the addresses of its slices in claims.endpoints.
	misplaced int32
	dirty     bool
	selector  bool // the Service has one
	choices   byte // of its annotations: the places in silents, selections (times 4) and directs (times directChoice)
	// closesLeft is what AnnotationClose says.
	closesLeft bool
	labels     string // as labels.Set formats them
}

// New returns an empty Tracker.
func New(o Options) *Tracker {
	t := &Tracker{
		options:  o,
		name:     normalize(o.NodeName),
		services: map[types.NamespacedName]*serviceState{},
		slices:   map[types.NamespacedName]*slice{},
		loose:    map[types.NamespacedName]int{},
		left:     map[types.NamespacedName][]netip.Addr{},
		nodeInfo: &nodeInfo{},
		cidrs:    map[string]*serviceCIDR{},
		problems: map[types.NamespacedName][]Problem{},
		reasons:  map[types.NamespacedName]string{},
	}
	t.misplaced.blocks = map[netip.Prefix]bool{}
	t.claims = newClaims(t.markDirty)
	return t
}

// Subscribe adds a Listener. It is notified after those that were added before it.
func (t *Tracker) Subscribe(l Listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listeners = append(slices.Clip(t.listeners), l)
}

// notifyChanged is called without the lock, as listeners call the Tracker.
func notifyChanged(all []Listener) {
	for _, l := range all {
		if l.Changed != nil {
			l.Changed()
		}
	}
}

// SetService adds or replaces a Service.
func (t *Tracker) SetService(o *corev1.Service) bool {
	return t.change(func() bool {
		b := builder{service: o, interner: &t.interner, ignoreExternal: t.options.IgnoreExternalIPs, proxyName: t.options.ProxyName}
		want := b.build()
		notes := b.notes.all()
		defer t.setReason(types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, b.reason)
		t.setLeft(types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, b.left)
		if want == nil && notes == nil {
			return t.removeService(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		}
		s := t.service(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		s.selector, s.labels = len(o.Spec.Selector) > 0, labels.Set(o.Labels).String()
		created := o.CreationTimestamp.Unix()
		known := s.created == created && (s.want == nil) == (want == nil)
		if known && slices.EqualFunc(s.want, want, sameShape) && slices.Equal(s.notes, notes) && s.choices == b.choices && s.closesLeft == b.closesLeft {
			return false
		}
		t.release(s)
		if b.closesLeft && !s.closesLeft {
			t.departures[service.IPv4]++
			t.departures[service.IPv6]++
		}
		s.created, s.want, s.notes, s.choices, s.closesLeft = created, want, notes, b.choices, b.closesLeft
		t.claim(s)
		t.markDirty(s)
		return true
	})
}

// DeleteService removes a Service. Its slices remain.
func (t *Tracker) DeleteService(name types.NamespacedName) bool {
	return t.change(func() bool { return t.removeService(name) })
}

// SetSlice adds or replaces an EndpointSlice.
func (t *Tracker) SetSlice(o *discoveryv1.EndpointSlice) bool {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	return t.change(func() bool {
		p := packer{node: t.name, interner: &t.interner}
		if !relevant(o) {
			changed := t.removeSlice(key)
			if loose(o) {
				t.loose[key] = p.pack(o).ready()
			}
			return changed
		}
		fresh := p.pack(o)
		delete(t.loose, key)
		owner := types.NamespacedName{Namespace: o.Namespace, Name: o.Labels[discoveryv1.LabelServiceName]}
		if old := t.slices[key]; old != nil {
			if old.owner.name == owner && old.same(fresh) {
				moved := !slices.Equal(old.endpoints, fresh.endpoints) // their places may differ
				if old.endpoints = fresh.endpoints; moved {
					t.markDirty(old.owner)
				}
				return moved
			}
			if old.owner.name == owner {
				t.noteDepartures(old, fresh)
			} else {
				t.noteDepartures(old, nil)
			}
			t.dropSlice(key)
		}
		fresh.owner = t.service(owner)
		t.slices[types.NamespacedName{Namespace: t.interner.intern(o.Namespace), Name: o.Name}] = fresh
		i, _ := slices.BinarySearchFunc(fresh.owner.slices, fresh, bySliceName)
		fresh.owner.slices = slices.Insert(fresh.owner.slices, i, fresh)
		t.markDirty(fresh.owner)
		t.count(fresh)
		return true
	})
}

// DeleteSlice removes an EndpointSlice.
func (t *Tracker) DeleteSlice(name types.NamespacedName) bool {
	return t.change(func() bool { return t.removeSlice(name) })
}

// SetNode sets the own Node. It ignores other Nodes.
func (t *Tracker) SetNode(o *corev1.Node) {
	if normalize(o.Name) != t.name {
		return
	}
	t.change(func() bool {
		f := readNode(o)
		if t.nodeInfo.same(f) {
			return false
		}
		// The zone affects the choice of endpoints, the addresses affect hairpin traffic.
		if t.nodeInfo.zone != f.zone || !slices.Equal(t.nodeInfo.addrs, f.addrs) {
			for _, s := range t.services {
				t.markDirty(s)
			}
		}
		t.nodeInfo, t.nodeDirty = f, true
		return true
	})
}

// DeleteNode does nothing: the node exists without its Node, and what is known remains valid.
func (t *Tracker) DeleteNode() {}

// Synced allows Latest to publish.
func (t *Tracker) Synced() {
	t.change(func() bool {
		t.synced = true
		return true
	})
}

// Unread sets how many objects the snapshots lack. See source.Sink.
func (t *Tracker) Unread(n int) {
	t.change(func() bool {
		changed := t.unread != n
		t.unread = n
		t.nodeDirty = t.nodeDirty || changed
		return changed
	})
}

// Batch implements source.Sink: until apply returns, Latest returns what it did before.
func (t *Tracker) Batch(apply func()) {
	t.mu.Lock()
	t.batching, t.batchChanged = true, false
	t.mu.Unlock()
	apply()
	t.mu.Lock()
	t.batching = false
	notify, all := t.batchChanged && t.synced, t.listeners
	t.mu.Unlock()
	if notify {
		notifyChanged(all)
	}
}

// Latest returns the present snapshot, the same pointer until something changes, nil before Synced.
func (t *Tracker) Latest() *service.Snapshot {
	t.mu.Lock()
	if !t.synced {
		t.mu.Unlock()
		return nil
	}
	if t.batching {
		t.batchChanged = true
		latest := t.latest
		t.mu.Unlock()
		return latest
	}
	fresh := t.update()
	latest, all := t.latest, t.listeners
	t.mu.Unlock()
	if len(fresh) == 0 {
		return latest
	}
	for _, l := range all {
		if l.Found != nil {
			l.Found(fresh)
		}
	}
	return latest
}

// Problems returns the problems as of the last call of Latest, sorted.
func (t *Tracker) Problems() []Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Problem
	for _, list := range t.problems {
		all = append(all, list...)
	}
	slices.SortFunc(all, compareProblems)
	return all
}

// change runs do under the lock, and returns as do whether it changed anything.
func (t *Tracker) change(do func() bool) bool {
	t.mu.Lock()
	changed := do()
	t.batchChanged = t.batchChanged || changed
	notify, all := changed && !t.batching && t.synced, t.listeners
	t.mu.Unlock()
	if notify {
		notifyChanged(all)
	}
	return changed
}

func bySliceName(a, b *slice) int { return cmp.Compare(a.name, b.name) }

// Reconfigure applies changed settings but NodeName and IgnoreExternalIPs: no objects are kept.
func (t *Tracker) Reconfigure(o Options) {
	t.change(func() bool {
		before := t.options.node(t.nodeInfo)
		t.options.NodeIPs = slices.Clone(o.NodeIPs)
		t.options.Pods, t.options.PodsFromNode = o.Pods, o.PodsFromNode
		t.options.NodePorts, t.options.NodePortsPrimary = slices.Clone(o.NodePorts), o.NodePortsPrimary
		t.options.MasqueradeAll = o.MasqueradeAll
		now := t.options.node(t.nodeInfo)
		changed := t.setSilentDefault(o.SilentEndpoints)
		changed = t.setSelectionDefault(o) || changed
		if sameNode(before, now) {
			return changed
		}
		// They affect hairpin traffic and, with NodePorts, which addresses are refused.
		if !slices.Equal(before.Addrs, now.Addrs) || !slices.Equal(before.NodePorts, now.NodePorts) {
			for _, s := range t.services {
				t.markDirty(s)
			}
		}
		t.nodeDirty = true
		return true
	})
}

// queue holds the claims to an address of another Service, by the logarithm of their number.
type queue struct {
	list  []claim       // a heap, the next holder first
	place map[claim]int // where in list
	// again counts repeated claims of a Service, as a NodePort that is its healthCheckNodePort.
	again map[claim]int
}

func (q *queue) push(c claim) {
	if q.place == nil {
		q.place, q.again = map[claim]int{}, map[claim]int{}
	}
	if _, known := q.place[c]; known {
		q.again[c]++
		return
	}
	heap.Push((*queueHeap)(q), c)
}

// pop removes and returns the next holder.
func (q *queue) pop() claim {
	first := q.list[0]
	q.drop(first)
	return first
}

// drop removes c and reports whether it was there.
func (q *queue) drop(c claim) bool {
	i, known := q.place[c]
	switch {
	case !known:
		return false
	case q.again[c] > 1:
		q.again[c]--
	case q.again[c] == 1:
		delete(q.again, c)
	default:
		heap.Remove((*queueHeap)(q), i)
	}
	return true
}

// queueHeap is what container/heap sees of a queue.
type queueHeap queue

func (h *queueHeap) Len() int           { return len(h.list) }
func (h *queueHeap) Less(i, j int) bool { return compareClaims(h.list[i], h.list[j]) < 0 }

func (h *queueHeap) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.place[h.list[i]], h.place[h.list[j]] = i, j
}

func (h *queueHeap) Push(x any) {
	c := x.(claim)
	h.place[c] = len(h.list)
	h.list = append(h.list, c)
}

func (h *queueHeap) Pop() any {
	last := len(h.list) - 1
	c := h.list[last]
	h.list[last] = claim{}
	h.list = h.list[:last]
	delete(h.place, c)
	return c
}

// origin is a slice with endpoints of a Port, and the number of the port there.
type origin struct {
	slice *slice
	port  uint16
}

// index finds the origins of a Service's Ports, for few Ports by scanning instead of a map.
type index struct {
	slices  []*slice
	origins map[originKey][]origin
	few     []origin // memory, reused
}

type originKey struct {
	family service.Family
	name   string
	proto  service.Protocol
}

// fewPorts is the number of Ports up to which a scan is faster than a map.
const fewPorts = 8

func indexOf(s *serviceState) index {
	x := index{slices: s.slices}
	if len(s.want) <= fewPorts {
		return x
	}
	x.origins = map[originKey][]origin{}
	for _, from := range s.slices {
		for _, t := range from.ports {
			k := originKey{from.family, t.name, t.proto}
			x.origins[k] = append(x.origins[k], origin{from, t.port})
		}
	}
	return x
}

// of returns the origins of p. The result is valid until the next call.
func (i *index) of(p *service.Port) []origin {
	if i.origins != nil {
		return i.origins[originKey{p.Family, p.Name.Port, p.Name.Protocol}]
	}
	i.few = i.few[:0]
	for _, s := range i.slices {
		if s.family != p.Family {
			continue
		}
		for _, t := range s.ports {
			if t.name == p.Name.Port && t.proto == p.Name.Protocol {
				i.few = append(i.few, origin{s, t.port})
			}
		}
	}
	return i.few
}
