// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"fmt"
	"slices"

	yamlv3 "go.yaml.in/yaml/v3"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Limits of a file. With these, any file takes time in proportion to its size, and memory
// of a few times its size.
const (
	// maxProblems is how many problems of a file are described. The others are counted.
	maxProblems = 20
	// maxRejected is how many objects of a file may be rejected before the rest of the
	// file is ignored as not being a manifest.
	maxRejected = 1000
	// maxObjects is how many objects a file may contain, including ignored ones.
	maxObjects = 100_000
	// maxTree bounds an object that only the library can parse, which takes up to 70 times
	// its size for that.
	maxTree = 512 << 10
	// maxObject is the size of the largest object. That is etcd's limit for a request, so
	// API servers take no larger ones: https://etcd.io/docs/v3.5/dev-guide/limit/.
	maxObject = 3 << 19
	// maxAnchored is the size of the largest document with aliases.
	maxAnchored = 128 << 10
)

// costs counts what was spent on a file.
type costs struct {
	over  int    // values beyond what so many bytes may have
	plain []byte // to be used again for the next document
}

// problems returns the number of problems so far.
func (d *decoded) problems() int { return d.rejectedCount }

// countObject counts an object of any kind.
func (d *decoded) countObject() {
	if d.counted++; d.counted > maxObjects {
		d.tooMuch = fmt.Errorf("more than %d objects; want several files", maxObjects)
	}
}

// reject records an object that cannot be used. Only the first few are described.
func (d *decoded) reject(k key, describe func() rejection) {
	if d.rejectedCount++; d.rejectedCount > maxRejected {
		d.tooMuch = fmt.Errorf("more than %d objects in it cannot be used, so none is; want Kubernetes objects", maxRejected)
		return
	}
	if k.kind == "" {
		d.unnamed++
	}
	if len(d.rejected) < maxProblems {
		d.rejected = append(d.rejected, describe())
	} else if k.kind != "" {
		d.undescribed = append(d.undescribed, k)
	}
}

// dense refuses an object that is too large, or that has far more values than text: even
// an empty value takes a hundred bytes. A small object may have many values, but not
// every object of a file.
func (c *costs) dense(text []byte) error {
	if len(text) > maxObject {
		return fmt.Errorf("the object has %d bytes; want at most %d, as an API server does", len(text), maxObject)
	}
	const spare, perValue = 10_000, 16
	n := bytes.Count(text, []byte(","))
	over := max(0, n-len(text)/perValue)
	if c.over+over > spare {
		return fmt.Errorf("the object has %d values in %d bytes; want no long lists of empty values", n, len(text))
	}
	c.over += over
	return nil
}

// compact frees what a decoder allocated in advance for longer lists. A cluster has tens
// of thousands of endpoints with one address each.
func compact(value any) {
	s, is := value.(*discoveryv1.EndpointSlice)
	if !is {
		return
	}
	s.Endpoints = exact(s.Endpoints)
	for i := range s.Endpoints {
		s.Endpoints[i].Addresses = exact(s.Endpoints[i].Addresses)
	}
}

func exact[T any](list []T) []T {
	if len(list) == 0 || cap(list) == len(list) {
		return list
	}
	fresh := make([]T, len(list))
	copy(fresh, list)
	return fresh
}

// hasAliases reports whether text is YAML with aliases, and short enough for them.
func hasAliases(text []byte) bool {
	if len(text) > maxAnchored || bytes.IndexByte(text, '&') < 0 || bytes.IndexByte(text, '*') < 0 {
		return false
	}
	var root yamlv3.Node
	return yamlv3.Unmarshal(text, &root) == nil && anyAlias(&root)
}

func anyAlias(n *yamlv3.Node) bool {
	return n.Kind == yamlv3.AliasNode || slices.ContainsFunc(n.Content, anyAlias)
}

// checkAliases refuses YAML in which aliases stand for much more than is written.
func checkAliases(text []byte) error {
	if bytes.IndexByte(text, '&') < 0 || bytes.IndexByte(text, '*') < 0 {
		return nil
	}
	var root yamlv3.Node
	if yamlv3.Unmarshal(text, &root) != nil || !anyAlias(&root) {
		return nil // the library reports it
	}
	if len(text) > maxAnchored {
		return fmt.Errorf("aliases in a document of %d bytes; want at most %d, or what they stand for written out", len(text), maxAnchored)
	}
	limit := 10*len(text) + maxAnchored
	if expandedSize(&root, map[*yamlv3.Node]int{}, limit) >= limit {
		return fmt.Errorf("aliases stand for more than %d bytes in a document of %d; want that written out", limit, len(text))
	}
	return nil
}

// expandedSize returns the size of n with its aliases expanded, but at most limit. It
// visits each node once.
func expandedSize(n *yamlv3.Node, known map[*yamlv3.Node]int, limit int) int {
	if size, ok := known[n]; ok {
		return size
	}
	known[n] = limit // a node within itself has no finite size
	size := 8 + len(n.Value)
	if n.Kind == yamlv3.AliasNode {
		size = expandedSize(n.Alias, known, limit)
	}
	for _, child := range n.Content {
		size = min(size+expandedSize(child, known, limit), limit)
	}
	known[n] = min(size, limit)
	return known[n]
}
