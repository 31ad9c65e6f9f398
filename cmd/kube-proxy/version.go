// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"kubeproxy/common/metrics"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X main.version=v1.2.3, followed by the commit and its
// date, separated by commas, if they are known. The compiler may have recorded these as
// well.
var version string

// versionFlag is "", "true" or "raw".
type versionFlag string

// String implements pflag.Value.
func (v *versionFlag) String() string { return string(*v) }

// Set implements pflag.Value.
func (v *versionFlag) Set(s string) error {
	switch s {
	case "true", "raw":
		*v = versionFlag(s)
	case "false":
		*v = ""
	default:
		return fmt.Errorf("want true, false or raw")
	}
	return nil
}

// Type implements pflag.Value.
func (v *versionFlag) Type() string { return "version" }

func newVersion(to streams) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "version [flags]",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if raw {
				return printVersion(to.out, "raw")
			}
			return printVersion(to.out, "true")
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print how the program was built, too")
	return cmd
}

func printVersion(w io.Writer, how versionFlag) error {
	b := buildInfo()
	if how != "raw" {
		_, err := fmt.Fprintf(w, "kube-proxy %s\n", b.Version)
		return err
	}
	_, err := fmt.Fprintf(w, "%#v\n", b)
	return err
}

// Build describes what the program was built from.
type Build struct {
	Version, Revision, Time, Modified string
	Go, Compiler, Platform            string
}

func buildInfo() Build {
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

// treeState returns, as Kubernetes does, whether the commit was built without local
// changes.
func (b Build) treeState() string {
	switch {
	case b.Modified == "true", strings.HasSuffix(b.Version, "-dirty"):
		return "dirty"
	case b.Revision != "":
		return "clean"
	}
	return ""
}

// metric returns what metrics show of the build.
func (b Build) metric() metrics.Build {
	return metrics.Build{
		GitVersion: b.Version, GitCommit: b.Revision, GitTreeState: b.treeState(), BuildDate: b.Time,
		GoVersion: b.Go, Compiler: b.Compiler, Platform: b.Platform,
	}
}
