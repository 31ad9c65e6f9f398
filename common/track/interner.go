// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"math"
	"strconv"
	"strings"
)

// interner shares values that occur many times: namespaces, port names, zones and layouts
// of slices.
type interner struct {
	seen    map[string]string
	layouts map[string]*sliceLayout
	key     []byte // scratch memory of internLayout

	places     []place // the first one is unknown
	placeIndex map[place]uint16
}

// maxInterned bounds the memory that names of deleted objects occupy.
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

// internLayout returns k or an equal layout that is known already. Layouts with notes are
// not shared.
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

// internPlace returns the index of at in places. Places are never forgotten. When the
// table is full, further ones count as unknown.
func (n *interner) internPlace(at place) uint16 {
	if i, ok := n.placeIndex[at]; ok {
		return i
	}
	if n.places == nil {
		n.places, n.placeIndex = []place{{}}, map[place]uint16{{}: 0}
		return n.internPlace(at)
	}
	if len(n.places) > math.MaxUint16 {
		return 0
	}
	at = place{strings.Clone(at.node), strings.Clone(at.zone)}
	n.placeIndex[at] = uint16(len(n.places))
	n.places = append(n.places, at)
	return n.placeIndex[at]
}
