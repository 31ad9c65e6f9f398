// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"
)

// didYouMean renders a suggestion, which may be empty, to follow an error.
func didYouMean(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", name)
}

// Closest returns the candidate that looks most like a misspelt name, or ""
// where none is near enough. Of equals the first wins.
func Closest(name string, candidates []string) string {
	best, least := "", 1+max(1, len(name)/3)
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	return best
}

// closestPath looks for a misspelt key first among its neighbours, then
// everywhere by its own name: a known field may stand in the wrong section.
func closestPath(path string) string {
	all := paths(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	i := strings.LastIndexByte(path, '.') + 1
	parent, key := path[:i], path[i:]
	var near, names []string
	byName := map[string]string{}
	for _, p := range all {
		j := strings.LastIndexByte(p, '.') + 1
		if p[:j] == parent {
			near = append(near, p[j:])
		}
		if _, dup := byName[p[j:]]; !dup {
			byName[p[j:]] = p
			names = append(names, p[j:])
		}
	}
	if c := Closest(key, near); c != "" {
		return parent + c
	}
	return byName[Closest(key, names)]
}

// maxName bounds what distance compares: no name is that long, and the cost
// grows with the square.
const maxName = 100

// distance counts the letters to insert, delete, replace or swap with their
// neighbour to make b of a.
func distance(a, b string) int {
	if len(a) > maxName || len(b) > maxName {
		return len(a) + len(b)
	}
	var before, row []int // the last two rows of the table
	next := make([]int, len(b)+1)
	for j := range next {
		next[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, row, next = row, next, make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+differ(a[i-1], b[j-1]))
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
	}
	return next[len(b)]
}

func differ(a, b byte) int {
	if a == b {
		return 0
	}
	return 1
}
