// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package suggest finds the valid name closest to a misspelt one.
package suggest

import "strings"

// Closest returns the candidate most similar to name, or "" if none is similar enough.
// Among equals the first one wins.
func Closest(name string, candidates []string) string {
	best, least := "", 1+max(1, len(name)/3)
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	return best
}

// maxName bounds the input of distance, because its cost is quadratic. No valid name is
// that long.
const maxName = 100

// distance counts the insertions, deletions, replacements and swaps of adjacent letters
// that turn a into b.
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
