// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"iter"
	"slices"
)

// Snapshot is everything that one node must forward at one moment. It is immutable.
// Consecutive snapshots share what did not change: the same pointer means the same Port.
type Snapshot struct {
	Generation uint64
	Node       *Node // never nil
	// Incomplete means that an object could not be read since the start. A port that an earlier
	// process programmed may be missing, so backends must leave it in force.
	Incomplete bool
	ports      [2]list
}

// chunkSize bounds what an update copies: one chunk of ports and the table
// of chunks. At 30,000 ports that is 4 kB instead of 240 kB.
const chunkSize = 256

// list holds ports sorted by name, in chunks that consecutive snapshots share.
type list struct {
	chunks []*chunk
	n      int
}

type chunk struct{ ports []*Port } // never empty

// New returns a Snapshot of ports, in any order, no two with the same name and family.
func New(generation uint64, node *Node, ports []*Port) *Snapshot {
	s := &Snapshot{Generation: generation, Node: node}
	for _, f := range Families {
		var mine []*Port
		for _, p := range ports {
			if p.Family == f {
				mine = append(mine, p)
			}
		}
		slices.SortFunc(mine, func(a, b *Port) int { return a.Name.Compare(b.Name) })
		s.ports[f] = list{split(mine), len(mine)}
	}
	return s
}

// split cuts sorted ports into chunks with room before balance splits or removes them.
func split(ports []*Port) []*chunk {
	var chunks []*chunk
	for part := range slices.Chunk(ports, chunkSize) {
		chunks = append(chunks, &chunk{slices.Clone(part)})
	}
	return chunks
}

// With returns the Snapshot that follows s after changes, in any order. The changes must
// fit s: each Old is in s, and a New without an Old is not.
func (s *Snapshot) With(generation uint64, node *Node, changes []Change) *Snapshot {
	next := &Snapshot{Generation: generation, Node: node, Incomplete: s.Incomplete, ports: s.ports}
	fresh := map[*chunk]bool{} // created in this call, so not shared yet
	for f := range next.ports {
		next.ports[f].chunks = slices.Clone(next.ports[f].chunks)
	}
	for _, c := range changes {
		next.ports[c.family()].apply(c, fresh)
	}
	return next
}

func (l *list) apply(c Change, fresh map[*chunk]bool) {
	name := c.Name()
	i := l.find(name)
	if i < 0 { // only an empty list has no chunk to put name in
		k := &chunk{[]*Port{c.New}}
		fresh[k] = true
		l.chunks, l.n = []*chunk{k}, 1
		return
	}
	k := l.chunks[i]
	if !fresh[k] {
		k = &chunk{slices.Clone(k.ports)}
		fresh[k] = true
		l.chunks[i] = k
	}
	at, found := slices.BinarySearchFunc(k.ports, name, comparePort)
	switch {
	case c.New == nil && found:
		k.ports = slices.Delete(k.ports, at, at+1)
		l.n--
	case c.New != nil && found:
		k.ports[at] = c.New
	case c.New != nil:
		k.ports = slices.Insert(k.ports, at, c.New)
		l.n++
	}
	l.balance(i, fresh)
}

// balance removes chunk i if it is empty, and splits it beyond twice the usual size.
func (l *list) balance(i int, fresh map[*chunk]bool) {
	k := l.chunks[i]
	switch n := len(k.ports); {
	case n == 0:
		l.chunks = slices.Delete(l.chunks, i, i+1)
	case n > 2*chunkSize:
		right := &chunk{slices.Clone(k.ports[n/2:])}
		fresh[right] = true
		k.ports = slices.Clip(k.ports[:n/2])
		l.chunks = slices.Insert(l.chunks, i+1, right)
	}
}

// find returns the index of the chunk that contains name or should, -1 without chunks.
func (l *list) find(name PortName) int {
	i, found := slices.BinarySearchFunc(l.chunks, name, func(k *chunk, n PortName) int {
		return k.ports[0].Name.Compare(n)
	})
	if !found && i > 0 {
		i--
	}
	if len(l.chunks) == 0 {
		return -1
	}
	return i
}

func comparePort(p *Port, n PortName) int { return p.Name.Compare(n) }

// Ports yields the ports of family f in name order.
func (s *Snapshot) Ports(f Family) iter.Seq[*Port] {
	return func(yield func(*Port) bool) {
		for _, k := range s.ports[f].chunks {
			for _, p := range k.ports {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// Port returns the port with the given name in family f, nil if there is none.
func (s *Snapshot) Port(f Family, name PortName) *Port {
	i := s.ports[f].find(name)
	if i < 0 {
		return nil
	}
	ports := s.ports[f].chunks[i].ports
	at, found := slices.BinarySearchFunc(ports, name, comparePort)
	if !found {
		return nil
	}
	return ports[at]
}

// Len returns the number of ports of family f.
func (s *Snapshot) Len(f Family) int { return s.ports[f].n }

// NodePortsClosed returns whether no address serves the NodePorts of family f as yet,
// because the addresses of the node are unknown. Without ports there is nothing to serve.
func (s *Snapshot) NodePortsClosed(f Family) bool { return s.Len(f) > 0 && s.Node.NodePortsPending[f] }

// Change is between two snapshots. Old is nil for an added port, New for a removed one.
type Change struct{ Old, New *Port }

// Name returns the name of the port that changed.
func (c Change) Name() PortName {
	if c.New != nil {
		return c.New.Name
	}
	return c.Old.Name
}

func (c Change) family() Family {
	if c.New != nil {
		return c.New.Family
	}
	return c.Old.Family
}

// Diff yields the changes in family f that lead from one snapshot to the next, in name
// order. If from is nil, every port counts as added. Diff skips shared chunks by pointer,
// so its cost depends on the size of the difference.
func Diff(from, to *Snapshot, f Family) iter.Seq[Change] {
	return func(yield func(Change) bool) {
		var a, b cursor
		if from != nil {
			a.chunks = from.ports[f].chunks
		}
		b.chunks = to.ports[f].chunks
		for {
			skipShared(&a, &b)
			p, q := a.port(), b.port()
			var c Change
			switch {
			case p == nil && q == nil:
				return
			case p == q: // most ports of a chunk, without a look at their names
				a.i++
				b.i++
			case p == nil || q != nil && q.Name.Compare(p.Name) < 0:
				c.New = q
				b.i++
			case q == nil || p.Name.Compare(q.Name) < 0:
				c.Old = p
				a.i++
			default:
				c = Change{p, q}
				a.i++
				b.i++
			}
			if c.Old != c.New && !yield(c) {
				return
			}
		}
	}
}

// cursor walks a list of chunks.
type cursor struct {
	chunks []*chunk
	i      int // in chunks[0]
}

// port returns the port under c, nil at the end.
func (c *cursor) port() *Port {
	for len(c.chunks) > 0 && c.i == len(c.chunks[0].ports) {
		c.chunks, c.i = c.chunks[1:], 0
	}
	if len(c.chunks) == 0 {
		return nil
	}
	return c.chunks[0].ports[c.i]
}

// skipShared moves both cursors past the chunks that they share.
func skipShared(a, b *cursor) {
	for a.port() != nil && b.port() != nil && a.i == 0 && b.i == 0 && a.chunks[0] == b.chunks[0] {
		a.chunks, b.chunks = a.chunks[1:], b.chunks[1:]
	}
}

// Commented returns a function that finds the Service port that a comment in a dataplane
// names: a port of s, or else one whose name the comment is. comment returns what the
// dataplane has for a name. If it cuts long names to the same comment, none is found.
func (s *Snapshot) Commented(f Family, comment func(PortName) string) func(string) PortName {
	names := map[string]PortName{}
	for p := range s.Ports(f) {
		c := comment(p.Name)
		if _, twice := names[c]; twice {
			names[c] = PortName{}
		} else {
			names[c] = p.Name
		}
	}
	return func(c string) PortName {
		if n, found := names[c]; found {
			return n
		}
		return ParsePortName(c)
	}
}
