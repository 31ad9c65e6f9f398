// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Status is the content of /statusz.
type Status struct {
	Started            time.Time
	Version, GoVersion string
	// More, if set, returns additional lines by title.
	More func() map[string]string
	Now  func() time.Time // nil for time.Now
}

const formatNotice = "This page is for people and may look different in the next version."

func (s *Status) text(paths []string) string {
	now := time.Now
	if s.Now != nil {
		now = s.Now
	}
	var b strings.Builder
	fmt.Fprintf(&b, "kube-proxy statusz\n%s\n\n", formatNotice)
	fmt.Fprintf(&b, "Started: %s\n", s.Started.UTC().Format(time.UnixDate))
	fmt.Fprintf(&b, "Up: %s\n", now().Sub(s.Started).Round(time.Second))
	fmt.Fprintf(&b, "Go version: %s\nBinary version: %s\n", s.GoVersion, s.Version)
	if s.More != nil {
		more := s.More()
		for _, title := range slices.Sorted(maps.Keys(more)) {
			fmt.Fprintf(&b, "%s: %s\n", title, more[title])
		}
	}
	fmt.Fprintf(&b, "Paths: %s", strings.Join(paths, " "))
	return b.String()
}

func flagz(flags map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kube-proxy flagz\n%s\n", formatNotice)
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		fmt.Fprintf(&b, "\n%s=%s", name, flags[name])
	}
	return b.String()
}
