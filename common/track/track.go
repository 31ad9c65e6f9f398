// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package track applies the rules of Kubernetes: it turns Services,
// EndpointSlices and the own Node into snapshots of what this node should
// forward. Where the objects come from is a source's business, how to forward
// a backend's.
package track

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
)

// Options are the operator's choices, see Reconfigure.
type Options struct {
	NodeName string       // the node we run on, as the API names it
	NodeIPs  []netip.Addr // go before the Node's own, family by family
	Pods     service.LocalPods
	// PodsFromNode takes the prefixes of local pods from the Node instead of
	// from Pods. Until it has any, nobody counts as a pod.
	PodsFromNode bool
	NodePorts    []netip.Prefix // see service.Node
	// NodePortsPrimary adds the node's primary address of each family to
	// NodePorts. As long as nobody knows the address of a family, it adds none
	// there.
	NodePortsPrimary  bool
	MasqueradeAll     bool
	IgnoreExternalIPs bool // of Services
	// ProxyName is the value of the label LabelProxyName that the Services of
	// this proxy have. Empty stands for Services without the label.
	ProxyName string
	// Listed fills service.Port.Listed.
	Listed bool

	// Changed, if set, is called after each call to the Sink that may lead
	// to a new snapshot or a new problem. It must return at once.
	Changed func()
	// Report, if set, is told from within Latest about the problems that appear,
	// in their order.
	Report func([]Problem)
}

// Tracker is a source.Sink that publishes snapshots. The rules of the API are
// applied when a snapshot is asked for, and only to what changed since the
// last one. All methods may be called from any goroutine.
type Tracker struct {
	options Options
	name    string // of the node, normalized

	mu       sync.Mutex
	services map[types.NamespacedName]*serviceState
	slices   map[types.NamespacedName]*slice
	claims   claims
	interner interner
	nodeInfo *nodeInfo
	host     Host
	cidrs    map[string]*serviceCIDR // by the name of the ServiceCIDR
	synced   bool
	unread   int // see source.Sink
	// batching says that a batch goes on, missed that it changed something or kept
	// a snapshot back.
	batching, batchChanged bool

	dirty     []*serviceState
	nodeDirty bool // the node may have changed
	latest    *service.Snapshot
	chooser   chooser
	// problems holds what was reported and still is so; the own Node has the
	// zero name.
	problems map[types.NamespacedName][]Problem
}

// serviceState is all that concerns one Service: the object, when there is one, and
// its slices, which may come first.
type serviceState struct {
	name    types.NamespacedName
	created int64 // seconds
	// want holds the Ports that the Service asks for, in its order. Their
	// endpoints mean nothing. have holds those in the latest snapshot. A
	// Port that got all it wants is in both, to save the memory.
	want, have []*service.Port
	slices     []*slice // by name
	notes      []note
	dirty      bool
}

// New returns a Tracker that knows nothing yet.
func New(o Options) *Tracker {
	t := &Tracker{
		options:  o,
		name:     normalize(o.NodeName),
		services: map[types.NamespacedName]*serviceState{},
		slices:   map[types.NamespacedName]*slice{},
		nodeInfo: &nodeInfo{},
		cidrs:    map[string]*serviceCIDR{},
		problems: map[types.NamespacedName][]Problem{},
	}
	t.claims = newClaims(t.markDirty)
	return t
}

// SetService takes in a new or changed Service.
func (t *Tracker) SetService(o *corev1.Service) { t.UpdateService(o) }

// UpdateService is SetService for those who want to know whether it matters: one
// that means the same as before changes nothing, and no round follows.
func (t *Tracker) UpdateService(o *corev1.Service) bool {
	return t.change(func() bool {
		b := builder{service: o, interner: &t.interner, ignoreExternal: t.options.IgnoreExternalIPs, proxyName: t.options.ProxyName}
		want := b.build()
		notes := b.notes.all()
		if want == nil && notes == nil {
			return t.removeService(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		}
		s := t.service(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		created := o.CreationTimestamp.Unix()
		known := s.created == created && (s.want == nil) == (want == nil)
		if known && slices.EqualFunc(s.want, want, sameShape) && slices.Equal(s.notes, notes) {
			return false
		}
		t.release(s)
		s.created, s.want, s.notes = created, want, notes
		t.claim(s)
		t.markDirty(s)
		return true
	})
}

// DeleteService forgets a Service. Its slices stay known.
func (t *Tracker) DeleteService(name types.NamespacedName) { t.RemoveService(name) }

// RemoveService is to DeleteService what UpdateService is to SetService.
func (t *Tracker) RemoveService(name types.NamespacedName) bool {
	return t.change(func() bool { return t.removeService(name) })
}

// SetSlice takes in a new or changed EndpointSlice.
func (t *Tracker) SetSlice(o *discoveryv1.EndpointSlice) { t.UpdateSlice(o) }

// UpdateSlice is to SetSlice what UpdateService is to SetService.
func (t *Tracker) UpdateSlice(o *discoveryv1.EndpointSlice) bool {
	key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
	return t.change(func() bool {
		if !relevant(o) {
			return t.removeSlice(key)
		}
		p := packer{node: t.name, interner: &t.interner}
		fresh := p.pack(o)
		owner := types.NamespacedName{Namespace: o.Namespace, Name: o.Labels[discoveryv1.LabelServiceName]}
		if old := t.slices[key]; old != nil {
			if old.owner.name == owner && old.same(fresh) {
				return false
			}
			t.removeSlice(key)
		}
		fresh.owner = t.service(owner)
		t.slices[types.NamespacedName{Namespace: t.interner.intern(o.Namespace), Name: o.Name}] = fresh
		i, _ := slices.BinarySearchFunc(fresh.owner.slices, fresh, bySliceName)
		fresh.owner.slices = slices.Insert(fresh.owner.slices, i, fresh)
		t.markDirty(fresh.owner)
		t.countSlice(fresh, 1)
		return true
	})
}

// DeleteSlice forgets an EndpointSlice.
func (t *Tracker) DeleteSlice(name types.NamespacedName) { t.RemoveSlice(name) }

// RemoveSlice is to DeleteSlice what UpdateService is to SetService.
func (t *Tracker) RemoveSlice(name types.NamespacedName) bool {
	return t.change(func() bool { return t.removeSlice(name) })
}

// SetNode takes in the own Node. Another one is ignored.
func (t *Tracker) SetNode(o *corev1.Node) {
	if normalize(o.Name) != t.name {
		return
	}
	t.change(func() bool {
		f := readNode(o)
		if t.nodeInfo.same(f) {
			return false
		}
		// The zone decides about endpoints, the addresses about hairpins.
		if t.nodeInfo.zone != f.zone || !slices.Equal(t.nodeInfo.addrs, f.addrs) {
			for _, s := range t.services {
				t.markDirty(s)
			}
		}
		t.nodeInfo, t.nodeDirty = f, true
		return true
	})
}

// DeleteNode changes nothing: the node we run on is there, whatever the API
// says, so what was last known about it stays true.
func (t *Tracker) DeleteNode() {}

// Synced lets Latest publish.
func (t *Tracker) Synced() {
	t.change(func() bool {
		t.synced = true
		return true
	})
}

// Unread notes how much the snapshots lack.
func (t *Tracker) Unread(n int) {
	t.change(func() bool {
		changed := t.unread != n
		t.unread = n
		t.nodeDirty = t.nodeDirty || changed
		return changed
	})
}

// Batch implements source.Sink: until tell returns, Latest returns what it did
// before.
func (t *Tracker) Batch(apply func()) {
	t.mu.Lock()
	t.batching, t.batchChanged = true, false
	t.mu.Unlock()
	apply()
	t.mu.Lock()
	t.batching = false
	notify := t.batchChanged && t.synced && t.options.Changed != nil
	t.mu.Unlock()
	if notify {
		t.options.Changed()
	}
}

// Latest returns what to forward now, nil before Synced. It returns the same
// pointer until something changes.
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
	latest := t.latest
	t.mu.Unlock()
	if t.options.Report != nil && len(fresh) > 0 {
		t.options.Report(fresh)
	}
	return latest
}

// Problems lists, sorted, what was wrong when Latest was last called.
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

// change runs do under the lock and returns what it does: whether it changed
// anything.
func (t *Tracker) change(do func() bool) bool {
	t.mu.Lock()
	changed := do()
	t.batchChanged = t.batchChanged || changed
	notify := changed && !t.batching && t.synced && t.options.Changed != nil
	t.mu.Unlock()
	if notify {
		t.options.Changed()
	}
	return changed
}

func bySliceName(a, b *slice) int { return cmp.Compare(a.name, b.name) }
