// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"strconv"
	"strings"
)

// names shares what occurs over and over: namespaces, port names, zones and
// the kinds of slices.
type names struct {
	seen  map[string]string
	kinds map[string]*kind
	key   []byte // memory for shareKind
}

// maxNames bounds the memory that names of objects long gone take.
const maxNames = 4096

func (n *names) share(s string) string {
	if s == "" {
		return ""
	}
	if have, ok := n.seen[s]; ok {
		return have
	}
	if n.seen == nil || len(n.seen) >= maxNames {
		n.seen = map[string]string{}
	}
	s = strings.Clone(s)
	n.seen[s] = s
	return s
}

// shareKind returns k or one that equals it. A kind with notes is one of a
// kind.
func (n *names) shareKind(k *kind) *kind {
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
	if have := n.kinds[string(n.key)]; have != nil {
		return have
	}
	if n.kinds == nil || len(n.kinds) >= maxNames {
		n.kinds = map[string]*kind{}
	}
	n.kinds[string(n.key)] = k
	return k
}
