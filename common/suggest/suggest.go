// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package suggest finds what a misspelt name was meant to be.
package suggest

import "strings"

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
