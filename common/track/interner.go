// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"strconv"
	"strings"
)

// interner shares what occurs over and over: namespaces, port names, zones and
// the kinds of slices.
type interner struct {
	seen    map[string]string
	layouts map[string]*sliceLayout
	key     []byte // memory for internLayout
}

// maxInterned bounds the memory that names of objects long gone take.
const maxInterned = 4096

func (n *interner) intern(s string) string {
	if s == "" {
		return ""
	}
	if have, ok := n.seen[s]; ok {
		return have
	}
	if n.seen == nil || len(n.seen) >= maxInterned {
		n.seen = map[string]string{}
	}
	s = strings.Clone(s)
	n.seen[s] = s
	return s
}

// internLayout returns k or one that equals it. A kind with notes is one of a
// kind.
func (n *interner) internLayout(k *sliceLayout) *sliceLayout {
	if len(k.notes) > 0 {
		return k
	}
	n.key = append(n.key[:0], byte(k.family))
	for _, p := range k.ports {
		n.key = append(strconv.AppendQuote(n.key, p.name), byte(p.proto), byte(p.port>>8), byte(p.port))
	}
	for _, z := range k.zones {
		n.key = strconv.AppendQuote(append(n.key, 0), z)
	}
	if have := n.layouts[string(n.key)]; have != nil {
		return have
	}
	if n.layouts == nil || len(n.layouts) >= maxInterned {
		n.layouts = map[string]*sliceLayout{}
	}
	n.layouts[string(n.key)] = k
	return k
}
