// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

// TrimCommon returns a and b without their common prefix and suffix. Of two lists of
// endpoints that differ by one endpoint, little is left.
func TrimCommon[T comparable](a, b []T) (onlyA, onlyB []T) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	return a, b
}
