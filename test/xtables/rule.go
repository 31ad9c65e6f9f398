// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package xtables

import "strings"

// words splits a rule into its arguments. Those with spaces are quoted.
func words(rule string) []string {
	var all []string
	for i, part := range strings.Split(rule, "\"") {
		if i%2 == 1 {
			all = append(all, part)
			continue
		}
		all = append(all, strings.Fields(part)...)
	}
	return all
}

// argument returns the word that follows flag, "" if there is none.
func argument(words []string, flag string) string {
	for i, w := range words[:max(len(words)-1, 0)] {
		if w == flag {
			return words[i+1]
		}
	}
	return ""
}

// target returns the target of a rule.
func target(words []string) string {
	if to := argument(words, "-j"); to != "" {
		return to
	}
	return argument(words, "-g")
}
