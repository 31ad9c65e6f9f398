// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli has what the commands share: help, arguments, completion, terminals, the build.
package cli

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/config"
)

// HelpWidth is the longest line of a help text.
const HelpWidth = 110

// SettingAnnotation marks a flag that every command takes that reads what a node must
// forward. The help of kube-proxy itself lists these flags, with what they mean.
const SettingAnnotation = "setting"

// PrintHelp prints the help of cmd: its description, its commands, and its flags. The usage
// of cobra has one list of all flags, with lines of up to 414
// letters. Here each heading of the configuration has a list of its own, which pflag
// prints.
func PrintHelp(cmd *cobra.Command, _ []string) {
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s\n", cmp.Or(cmd.Long, cmd.Short), cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\nCommands:\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				fmt.Fprintf(w, "  %-*s %s\n", c.NamePadding(), c.Name(), c.Short)
			}
		}
	}
	if cmd.HasParent() {
		printOwn(w, cmd)
		return
	}
	groups := map[string]*pflag.FlagSet{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := "General"
		if g := f.Annotations[config.GroupAnnotation]; len(g) > 0 {
			name = g[0]
		}
		if groups[name] == nil {
			groups[name] = pflag.NewFlagSet(name, pflag.ContinueOnError)
		}
		groups[name].AddFlag(f)
	})
	for _, name := range config.Groups {
		if groups[name] != nil {
			fmt.Fprintf(w, "\n%s:\n%s", name, groups[name].FlagUsagesWrapped(HelpWidth))
		}
	}
}

// printOwn prints the flags of a command below kube-proxy. The settings of the proxy are
// some hundred more, which would hide these few.
func printOwn(w io.Writer, cmd *cobra.Command) {
	own, settings := pflag.NewFlagSet("", pflag.ContinueOnError), false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Annotations[SettingAnnotation] != nil {
			settings = true
			return
		}
		own.AddFlag(f)
	})
	if own.HasAvailableFlags() {
		fmt.Fprintf(w, "\nFlags:\n%s", own.FlagUsagesWrapped(HelpWidth))
	}
	if settings {
		fmt.Fprintf(w, "\nThe other settings of the proxy are flags here, too: kube-proxy --help lists them.\n")
	}
}
