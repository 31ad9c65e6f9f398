// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"strings"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/suggest"
)

// didYouMean renders a suggestion, which may be empty, for the end of an error.
func didYouMean(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %s?", name)
}

// closestPath searches for a misspelt key first in its section, then everywhere by its
// own name, because a known field may be in the wrong section.
func closestPath(path string) string {
	all := paths(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	for _, s := range ownSwitches {
		all = append(all, s.path)
	}
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
	if c := suggest.Closest(key, near); c != "" {
		return parent + c
	}
	return byName[suggest.Closest(key, names)]
}
