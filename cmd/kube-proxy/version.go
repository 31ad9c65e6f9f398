// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/cli"
)

// version is set by the linker: -X main.version=v1.2.3, with commit and date after commas, if
// known, which the compiler may have recorded, too.
var version string

// versionFlag is "", "true" or "raw". It implements pflag.Value.
type versionFlag string

func (v *versionFlag) String() string { return string(*v) }

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

func (v *versionFlag) Type() string { return "version" }

// IsBoolFlag lets pflag take the flag without a value.
func (v *versionFlag) IsBoolFlag() bool { return true }

func newVersion(to streams) *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "version [flags]",
		Short: "Print the version",
		Args:  cli.NoArgs,
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

// buildInfo describes this program.
func buildInfo() cli.Build { return cli.ReadBuild(version) }
