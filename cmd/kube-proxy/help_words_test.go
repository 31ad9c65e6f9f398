// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/platform/modes"
)

// TestOneWordForOneThing reads all help texts side by side: a flag of one name means the
// same in every command, texts fit on a screen, and no word has another one beside it.
func TestOneWordForOneThing(t *testing.T) {
	usages := map[string]string{}
	each(newRoot(streams{}, modes.All()), func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Long) {
			if n := utf8.RuneCountInString(line); n > 83 {
				t.Errorf("%s: a line of %d letters: %s", cmd.CommandPath(), n, line)
			}
		}
		for other, word := range map[string]string{"Tell": "Say", "Show": "Print", "seconds to wait": "how much TIME", "bundle": "archive"} {
			if text := cmd.Short + "\n" + cmd.Long; strings.Contains(text, other) {
				t.Errorf("%s: %q in the help: other commands have %q", cmd.CommandPath(), other, word)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			switch f.Name {
			case "help", "output", "timeout", "manifests", "config", "strict-config", "metrics-bind-address": // of each command
				return
			}
			if before, seen := usages[f.Name]; seen && before != f.Usage {
				t.Errorf("%s --%s: %q, elsewhere %q", cmd.CommandPath(), f.Name, f.Usage, before)
			}
			usages[f.Name] = f.Usage
		})
	})
}

// each calls do for cmd and the commands below it, except for those that cobra writes.
func each(cmd *cobra.Command, do func(*cobra.Command)) {
	if cmd.Name() == "completion" || cmd.Name() == "help" {
		return
	}
	do(cmd)
	for _, c := range cmd.Commands() {
		each(c, do)
	}
}
