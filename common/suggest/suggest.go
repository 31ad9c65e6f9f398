// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package suggest finds the valid name closest to a misspelt one.
package suggest

import (
	"slices"
	"strings"
)

// Service returns the Service that name in namespace was to be, of those in all, which are
// NAMESPACE/NAME, or "". namespace is "" for any.
func Service(namespace, name string, all []string) string {
	byName, names := map[string]string{}, []string{} // names in the namespace
	elsewhere := ""
	for _, full := range all {
		ns, n, _ := strings.Cut(full, "/")
		if n == name {
			elsewhere = full
		}
		if namespace == "" || ns == namespace {
			byName[n], names = full, append(names, n)
		}
	}
	if elsewhere != "" {
		return elsewhere
	}
	return byName[Closest(name, names)]
}

// leastPrefix is how many letters of a name tell which one it is.
const leastPrefix = 3

// Closest returns the candidate most similar to name, else one that begins with it, or "" if
// none is similar enough. Among equals the first one wins.
func Closest(name string, candidates []string) string {
	best, least := "", 1+max(1, len(name)/3)
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	begins := slices.IndexFunc(candidates, func(c string) bool { return strings.HasPrefix(c, name) })
	if best == "" && len(name) >= leastPrefix && begins >= 0 {
		return candidates[begins]
	}
	return best
}

// maxName bounds distance, whose cost is quadratic. No valid name is that long.
const maxName = 100

// distance counts what turns a into b: insertions, deletions, replacements and swaps.
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
