// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"encoding/json"
	"fmt"

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
	// maxTree bounds the YAML of a file that only the library can parse, which takes up
	// to 70 times its size for that.
	maxTree = 512 << 10
	// treeSetup is what a document adds to its size for this limit.
	treeSetup = 128
	// maxObject is the size of the largest object. That is etcd's limit for a request, so
	// API servers take no larger ones: https://etcd.io/docs/v3.5/dev-guide/limit/.
	maxObject = 3 << 19
	// maxAnchored is the size of the largest document with aliases.
	maxAnchored = 128 << 10
)

// costs counts what was spent on a file.
type costs struct {
	size  int    // of the file
	trees int    // bytes that the library read
	scans int    // bytes looked through for lines
	over  int    // values beyond what so many bytes may have
	plain []byte // to be used again for the next document
}

// chargeTree charges n bytes for the library. It returns an error if that exceeds the
// limit.
func (c *costs) chargeTree(n int) error {
	if c.trees += n; c.trees > maxTree {
		return fmt.Errorf("the file has more than %d bytes in documents with flow style or quotes over lines, aliases, tags, tabs or keys that are not ASCII; "+
			"want block style, as kubectl writes it, JSON, or several files", maxTree)
	}
	return nil
}

// chargeLines charges n bytes for line numbers. It returns false if that exceeds the
// limit.
func (c *costs) chargeLines(n int) bool {
	if c.scans+n > 2*c.size+maxProblems<<12 {
		return false
	}
	c.scans += n
	return true
}

func newDecoded(content []byte) *decoded { return &decoded{costs: costs{size: len(content)}} }

// problems returns the number of problems so far.
func (d *decoded) problems() int { return len(d.rejected) + len(d.unparsable) + d.more }

// tooManyErrors reports whether the rest of the file is to be ignored.
func (d *decoded) tooManyErrors() bool {
	return d.rejectedCount > maxRejected || d.counted > maxObjects || len(d.unparsable) >= maxProblems
}

// countObject counts an object of any kind.
func (d *decoded) countObject() {
	if d.counted++; d.counted == maxObjects+1 {
		d.unparsable = append(d.unparsable, rejection{err: fmt.Errorf("more than %d objects; want several files", maxObjects)})
	}
}

// rejectDocument records a document that cannot be parsed.
func (d *decoded) rejectDocument(b rejection) { d.unparsable = append(d.unparsable, b) }

// rejectObject records an object that cannot be used. Only the first few are described.
func (d *decoded) rejectObject(k key, describe func() rejection) {
	if d.rejectedCount++; d.rejectedCount > maxRejected {
		d.unparsable = append(d.unparsable, rejection{err: fmt.Errorf("more than %d objects in it cannot be used, so none is; want Kubernetes objects", maxRejected)})
		return
	}
	if d.problems() < maxProblems {
		d.rejected = append(d.rejected, describe())
		return
	}
	d.more++
	if k.kind != "" {
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

// checkAliases refuses YAML in which aliases stand for much more than is written.
func checkAliases(text []byte) error {
	if bytes.IndexByte(text, '&') < 0 || bytes.IndexByte(text, '*') < 0 {
		return nil
	}
	if len(text) > maxAnchored {
		return fmt.Errorf("aliases in a document of %d bytes; want at most %d, or what they stand for written out", len(text), maxAnchored)
	}
	var root yamlv3.Node
	if yamlv3.Unmarshal(text, &root) != nil {
		return nil // the library reports it
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

// eachItem calls each for the items of a List until each returns false. So the items are
// never all in memory.
func eachItem(list []byte, each func(json.RawMessage) bool) error {
	d := json.NewDecoder(bytes.NewReader(list))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if key != "items" {
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return err
			}
			continue
		}
		open, err := d.Token()
		if err != nil || open == nil {
			return err
		}
		if open != json.Delim('[') {
			return fmt.Errorf("items is no list")
		}
		for d.More() {
			var item json.RawMessage
			if err := d.Decode(&item); err != nil {
				return err
			}
			if !each(item) {
				return nil
			}
		}
		if _, err := d.Token(); err != nil {
			return err
		}
	}
	return nil
}
