// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/cmd/kube-proxy/internal/usage"
	"kubeproxy/common/printable"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

func newConfig(to streams, table mode.Table) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config COMMAND",
		Short: "Check a configuration file or bring it up to date",
		Args:  usage.NoArgs,
		RunE:  usage.RequireCommand,
	}
	cmd.AddCommand(newValidate(to, table), newMigrate(to))
	return cmd
}

func newValidate(to streams, table mode.Table) *cobra.Command {
	system, strict := string(host.OS), true
	cmd := &cobra.Command{
		Use:   "validate FILE [flags]",
		Short: "Check a configuration file",
		Long: `Check a configuration file as the proxy would at its start. The FILE - is
standard input.

Every error goes to standard error and makes the exit code 1. A setting that is
right but has no effect is listed on standard output. Mistakes that the proxy
only warns of are errors, unless --strict-config=false.`,
		Args: usage.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if system != string(config.Linux) && system != string(config.Windows) {
				return fmt.Errorf("--os: %.80q is unknown: want %s or %s", system, config.Linux, config.Windows)
			}
			flags := config.Flags{Modes: table.Config(), Config: args[0], StrictConfig: strict}
			data, err := readConfig(cmd.InOrStdin(), &flags)
			if err != nil {
				return invalid(flags, system, nil, err)
			}
			c, err := config.LoadFrom(&flags, config.OS(system), data)
			if err != nil {
				return invalid(flags, system, data, err)
			}
			for _, w := range c.Warnings {
				fmt.Fprintf(to.out, "warning: %s\n", w)
			}
			for _, n := range c.Notes {
				fmt.Fprintf(to.out, "note: %s\n", n)
			}
			_, err = fmt.Fprintf(to.out, "%s: valid for %s\n", printable.Text(flags.Config), system)
			return err
		},
	}
	cmd.Flags().BoolVar(&strict, "strict-config", strict, "treat as errors what the proxy only warns of without this flag")
	cmd.Flags().StringVar(&system, "os", system, "check for this `SYSTEM`: linux or windows")
	return cmd
}

// standardInput is the name of standard input in messages, and the argument that stands for it.
const standardInput, inputArgument = "standard input", "-"

// readConfig reads the file that flags name.
func readConfig(in io.Reader, flags *config.Flags) ([]byte, error) {
	if flags.Config != inputArgument {
		return flags.ReadFile()
	}
	flags.Config = standardInput
	return config.Read(in)
}

func newMigrate(to streams) *cobra.Command {
	return &cobra.Command{
		Use:   "migrate FILE",
		Short: "Print a configuration file without what has been removed",
		Long: `Print a configuration file without the fields that have been removed.

Everything else stays as it is, comments too. What was left out is listed on
standard error. The file itself is not changed.`,
		Args: usage.OneArg,
		RunE: func(_ *cobra.Command, args []string) error {
			data, left, err := config.Migrate(args[0])
			if err != nil {
				return err
			}
			for _, n := range left {
				fmt.Fprintf(to.err, "left out: %s\n", n)
			}
			_, err = to.out.Write(data)
			return err
		},
	}
}

// invalid describes the consequence of err, which lists all faults of a configuration
// file with data. A proxy either refuses the file, or only warns unless it runs with
// --strict-config.
func invalid(flags config.Flags, system string, data []byte, err error) error {
	flags.StrictConfig = false
	if _, fatal := config.LoadFrom(&flags, config.OS(system), data); fatal == nil && data != nil {
		return fmt.Errorf("the configuration has mistakes that the proxy only warns of without --strict-config:\n%w", err)
	}
	return fmt.Errorf("the configuration cannot be used on %s:\n%w", system, err)
}
