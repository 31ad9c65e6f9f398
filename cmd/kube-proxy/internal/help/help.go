// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package help

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/config"
)

// The columns of a help text.
const (
	indent    = 2
	nameWidth = 44 // longer names get a line of their own
	Width     = 110
)

// Print prints the help of cmd: its description, its commands, and its flags under
// headings, all in the same columns.
func Print(cmd *cobra.Command, _ []string) {
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s\n", cmp.Or(cmd.Long, cmd.Short), cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\nCommands:\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				printRow(w, c.Name(), c.Short)
			}
		}
	}
	groups := map[string][]*pflag.Flag{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := "General"
		if g := f.Annotations[config.GroupAnnotation]; len(g) > 0 {
			name = g[0]
		}
		groups[name] = append(groups[name], f)
	})
	for _, name := range config.Groups {
		if len(groups[name]) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s:\n", name)
		slices.SortFunc(groups[name], func(a, b *pflag.Flag) int { return cmp.Compare(a.Name, b.Name) })
		for _, f := range groups[name] {
			printRow(w, flagName(f), flagUsage(f))
		}
	}
}

// flagName returns "-v, --v LEVEL" or " --config FILE".
func flagName(f *pflag.Flag) string {
	name := "    --" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", --" + f.Name
	}
	value, _ := pflag.UnquoteUsage(f)
	switch {
	case f.Name == "version":
		return name + "[=raw]"
	case value == "" || f.Value.Type() == "bool":
		return name
	}
	return name + " " + value
}

// flagUsage returns the help of f with its default, if it has one.
func flagUsage(f *pflag.Flag) string {
	_, usage := pflag.UnquoteUsage(f)
	switch f.DefValue {
	case "", "false", "[]", "0", "0s":
		return usage
	}
	if f.Name == "version" {
		return usage
	}
	return usage + " (default " + f.DefValue + ")"
}

// printRow prints a name and, beside it, its wrapped description.
func printRow(w io.Writer, name, text string) {
	lines := wrap(text, Width-indent-nameWidth)
	margin := strings.Repeat(" ", indent)
	if len(name) > nameWidth-2 {
		fmt.Fprintf(w, "%s%s\n", margin, name)
		name = ""
	}
	for _, line := range lines {
		fmt.Fprintf(w, "%s%-*s%s\n", margin, nameWidth, name, line)
		name = ""
	}
}

// wrap breaks text between words into lines of at most width letters.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
