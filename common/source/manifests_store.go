// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/files"
	"kubeproxy/common/printable"
)

// key identifies an object. The zero key means that the object is unknown.
type key struct {
	kind string
	name types.NamespacedName
}

// String quotes a name unless it is plain, because names are not validated yet.
func (k key) String() string {
	plain := func(s string) string {
		if q := strconv.Quote(s); q != `"`+s+`"` || len(s) > 253 {
			return fmt.Sprintf("%.80q", s)
		}
		return s
	}
	if k.name.Namespace == "" {
		return k.kind + " " + plain(k.name.Name)
	}
	return k.kind + " " + plain(k.name.Namespace) + "/" + plain(k.name.Name)
}

// kindOrder lists the kinds in the order of delivery.
const kindOrder = "Node ServiceCIDR Service EndpointSlice"

func compareKeys(a, b key) int {
	return cmp.Or(
		cmp.Compare(kindIndex(a.kind), kindIndex(b.kind)),
		cmp.Compare(a.name.Namespace, b.name.Namespace),
		cmp.Compare(a.name.Name, b.name.Name),
	)
}

// kindIndex returns the position of a kind in kindOrder.
func kindIndex(kind string) int { return strings.Index(kindOrder+" ", kind+" ") }

// object is a decoded *corev1.Service, *corev1.Node, *endpoints,
// *discoveryv1.EndpointSlice or *networkingv1.ServiceCIDR.
type object struct {
	key   key
	value any
}

// manifestStore is the state of all files and what was delivered of it.
type manifestStore struct {
	decoder   decoder
	node      string
	paths     []string
	contents  map[string][]byte
	listings  map[string]*listing
	files     map[string]*file
	delivered map[key]any

	unread int  // as last passed to the sink
	never  int  // files and directories of which nothing was ever readable
	held   bool // a file has objects

	report   func(Fault)
	problems []problem // as of the last refresh
	reported faults
}

// problem is a problem with an object. One object may have several.
type problem struct {
	object string // as in Fault
	err    error
	single bool // others of the file can be used
}

func newManifestStore(m *Manifests) *manifestStore {
	return &manifestStore{
		decoder:   decoder{note: m.Note, noted: map[string]bool{}},
		node:      normalizeNode(m.NodeName),
		paths:     m.Paths,
		contents:  m.Contents,
		listings:  map[string]*listing{},
		files:     map[string]*file{},
		delivered: map[key]any{},
		report:    m.Report,
	}
}

func normalizeNode(name string) string {
	return strings.ToLower(strings.TrimSpace(name))
}

// refresh reads all files that changed and delivers the difference to the sink.
// hindrance, if not nil, is why changes cannot be watched. It is reported with the other
// problems.
func (l *manifestStore) refresh(sink Sink, hindrance error) {
	l.problems = nil
	if hindrance != nil {
		l.problems = append(l.problems, problem{object: "changes of files", err: hindrance})
	}
	all := l.readFiles(time.Now())
	wanted := l.merge(all)
	// A renamed port changes both in a Service and in its slices.
	sink.Batch(func() {
		l.deliver(sink, wanted)
		l.reportUnread(sink, all)
	})
	l.reported = l.reported.report(l.problems, l.report)
}

// reportUnread counts the files with content of which no good version was ever read, and
// the directories that were never listed. Their previous content is unknown.
func (l *manifestStore) reportUnread(sink Sink, all []*file) {
	unread := 0
	l.never, l.held = 0, false
	for _, f := range all {
		l.held = l.held || len(f.objects) > 0
		if f.unknown {
			unread++
		}
		if f.unknown && len(f.objects) == 0 {
			l.never++
		}
	}
	for _, dir := range l.listings {
		if dir.err != nil && len(dir.files) == 0 {
			unread++
			l.never++
		}
	}
	if unread != l.unread {
		l.unread = unread
		sink.Unread(unread)
	}
}

// readFiles refreshes the files and returns them in order.
func (l *manifestStore) readFiles(now time.Time) []*file {
	var order []*file
	seen := map[string]*file{}
	for _, path := range l.paths {
		if l.listings[path] == nil {
			l.listings[path] = &listing{}
		}
		dir := l.listings[path]
		if l.contents[path] != nil {
			*dir = listing{files: []string{path}}
		} else {
			dir.list(path)
		}
		if dir.err != nil {
			l.problems = append(l.problems, problem{object: path, err: dir.err})
		} else if len(dir.files) == 0 {
			l.decoder.noteOnce(path, fmt.Sprintf("%s: no file in it ends in .yaml, .yml or .json; folders in it are not read", path))
		}
		for _, name := range dir.files {
			if seen[name] != nil {
				continue
			}
			f := l.files[name]
			if f == nil {
				f = &file{path: name}
			}
			if content := l.contents[path]; content != nil {
				f.parse(&l.decoder, files.Text(content))
			} else if dir.err == nil {
				f.refresh(&l.decoder, now)
			}
			seen[name] = f
			order = append(order, f)
		}
	}
	l.files = seen
	return order
}

// merge returns the combined content of the files: the first object of each name, and
// Endpoints only for Services without slices.
func (l *manifestStore) merge(all []*file) map[key]any {
	type first struct {
		object
		path string
	}
	seen := make(map[key]first, len(l.delivered))
	sliced := map[types.NamespacedName]bool{}
	for _, f := range all {
		l.problems = append(l.problems, f.problems...)
		var twice []problem
		for _, o := range f.objects {
			if have, dup := seen[o.key]; dup {
				twice = append(twice, problem{
					f.path + ": " + o.key.String(),
					fmt.Errorf("manifest %s: %s is ignored: %s has it already", printable.Text(f.path), o.key, printable.Text(have.path)),
					true,
				})
				continue
			}
			seen[o.key] = first{o, f.path}
			if s, ok := o.value.(*discoveryv1.EndpointSlice); ok {
				sliced[types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}] = true
			}
		}
		l.problems = append(l.problems, firstProblems(f.path, twice)...)
	}
	wanted := make(map[key]any, len(seen))
	for k, o := range seen {
		switch v := o.value.(type) {
		case *endpoints:
			if !sliced[k.name] {
				addSlices(wanted, v)
			}
		case *corev1.Node:
			if normalizeNode(v.Name) == l.node {
				wanted[k] = v
			}
		default:
			wanted[k] = v
		}
	}
	return wanted
}

// firstProblems returns the first few problems with duplicate objects, and the number of
// the others.
func firstProblems(path string, twice []problem) []problem {
	if len(twice) <= maxProblems {
		return twice
	}
	more := fmt.Errorf("manifest %s: %d more objects are ignored: they are there already", path, len(twice)-maxProblems)
	return append(twice[:maxProblems], problem{path + ": objects that are there already", more, true})
}

func addSlices(to map[key]any, e *endpoints) {
	for _, s := range slicesOf(e) {
		to[key{"EndpointSlice", types.NamespacedName{Namespace: s.Namespace, Name: s.Name}}] = s
	}
}

// deliver passes the difference to the sink. New objects come before deletions, so that
// endpoints which move between slices are never missing.
func (l *manifestStore) deliver(sink Sink, wanted map[key]any) {
	var fresh, deleted []key // sorting everything would take longer than comparing it
	for k, v := range wanted {
		if old, ok := l.delivered[k]; ok && (old == v || reflect.DeepEqual(old, v)) {
			wanted[k] = old
			continue
		}
		fresh = append(fresh, k)
	}
	for k := range l.delivered {
		if _, ok := wanted[k]; !ok {
			deleted = append(deleted, k)
		}
	}
	slices.SortFunc(fresh, compareKeys)
	slices.SortFunc(deleted, compareKeys)
	for _, k := range fresh {
		sinkSet(sink, wanted[k])
	}
	for _, k := range deleted {
		sinkDelete(sink, k)
	}
	l.delivered = wanted
}

func sinkSet(sink Sink, v any) {
	switch v := v.(type) {
	case *corev1.Node:
		sink.SetNode(v)
	case *corev1.Service:
		sink.SetService(v)
	case *discoveryv1.EndpointSlice:
		sink.SetSlice(v)
	case *networkingv1.ServiceCIDR:
		sink.SetServiceCIDR(v)
	}
}

func sinkDelete(sink Sink, k key) {
	switch k.kind {
	case "Node":
		sink.DeleteNode()
	case "Service":
		sink.DeleteService(k.name)
	case "EndpointSlice":
		sink.DeleteSlice(k.name)
	case "ServiceCIDR":
		sink.DeleteServiceCIDR(k.name.Name)
	}
}

// recheckAfter returns the time until the next check without a notification.
func (l *manifestStore) recheckAfter() time.Duration {
	for _, f := range l.files {
		if !f.emptySince.IsZero() {
			return emptyGrace / 4
		}
	}
	return time.Duration(1<<63 - 1)
}
