// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"strings"

	"kubeproxy/common/metrics"
)

// Build describes what the program was built from.
type Build struct {
	Version, Revision, Time, Modified string
	Go, Compiler, Platform            string
}

// ReadBuild returns what this program was built from. version is what the linker was given: the
// version, and the commit and its date, separated by commas, if they are known.
func ReadBuild(version string) Build {
	name, more, _ := strings.Cut(version, ",")
	commit, date, _ := strings.Cut(more, ",")
	b := Build{Version: name, Revision: commit, Time: date, Go: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = cmp.Or(b.Revision, s.Value)
		case "vcs.time":
			b.Time = cmp.Or(b.Time, s.Value)
		case "vcs.modified":
			b.Modified = s.Value
		}
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "devel"
	}
	return b
}

// treeState returns, as Kubernetes does, whether the commit had no local changes.
func (b Build) treeState() string {
	switch {
	case b.Modified == "true", strings.HasSuffix(b.Version, "-dirty"):
		return "dirty"
	case b.Revision != "":
		return "clean"
	}
	return ""
}

// Metric returns what metrics show of the build.
func (b Build) Metric() metrics.Build {
	return metrics.Build{
		GitVersion: b.Version, GitCommit: b.Revision, GitTreeState: b.treeState(), BuildDate: b.Time,
		GoVersion: b.Go, Compiler: b.Compiler, Platform: b.Platform,
	}
}
