// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

func newConfig(to streams, table mode.Table) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config COMMAND",
		Short: "Check a configuration file or bring it up to date",
		Args:  cli.NoArgs,
		RunE:  cli.RequireCommand,
	}
	cmd.AddCommand(newValidate(to, table), newMigrate(to, table))
	return cmd
}

func newValidate(to streams, table mode.Table) *cobra.Command {
	system, strict := string(host.OS), true
	cmd := &cobra.Command{
		Use:   "validate FILE [flags] [-- FLAGS]",
		Short: "Check a configuration file",
		Long: `Check a configuration file as the proxy would at its start. The FILE - is
standard input. In a file for kubeadm, and in a ConfigMap or a list of them, the
part for the proxy is checked.

FLAGS are those of the proxy's command line. They are checked, too, and those
that override the file are listed.

Every error goes to standard error and makes the exit code 1. A setting that is
right but has no effect is listed on standard output. Mistakes that the proxy
only warns of are errors, unless --strict-config=false.`,
		Args: fileAndFlags,
		RunE: func(cmd *cobra.Command, args []string) error {
			if system != string(config.Linux) && system != string(config.Windows) {
				return fmt.Errorf("--os: %.80q is unknown: want %s or %s", system, config.Linux, config.Windows)
			}
			flags, err := unitFlags(cmd, table, args[1:])
			if err != nil {
				return err
			}
			flags.Config, flags.StrictConfig = args[0], strict
			found, err := config.FindIn(cmd.InOrStdin(), flags.Config)
			if err != nil {
				return fmt.Errorf("the configuration cannot be used on %s:\n%w", system, err)
			}
			var faults []error
			for _, f := range found {
				faults = append(faults, validate(to.out, *flags, f, system))
			}
			return errors.Join(faults...)
		},
	}
	cmd.Flags().BoolVar(&strict, "strict-config", strict, "treat as errors what the proxy only warns of without this flag")
	cmd.Flags().StringVar(&system, "os", system, "check for this `SYSTEM`: linux or windows")
	return cmd
}

// fileAndFlags accepts one argument, and any number of them after --.
func fileAndFlags(cmd *cobra.Command, args []string) error {
	if n := cmd.ArgsLenAtDash(); n >= 0 {
		args = args[:n]
	}
	return cli.OneArg(cmd, args)
}

// unitFlags parses the flags of the proxy's command line, which may begin with the program.
func unitFlags(cmd *cobra.Command, table mode.Table, args []string) (*config.Flags, error) {
	o := newOptions(table)
	root := &cobra.Command{Use: cmd.Root().Name()}
	o.register(root.Flags())
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") && !strings.Contains(args[0], "=") {
		args = args[1:]
	}
	if err := root.ParseFlags(args); err != nil {
		return nil, cli.FlagError(root, err)
	}
	if rest := root.Flags().Args(); len(rest) > 0 {
		return nil, fmt.Errorf("unexpected argument %.80q after --: want flags of kube-proxy%s", rest[0], cli.SwitchHint(rest[0]))
	}
	return &o.Flags, nil
}

// validate checks what was found in a file.
func validate(out io.Writer, flags config.Flags, f config.Found, system string) error {
	flags.Config = f.Name
	c, err := config.LoadFrom(&flags, config.OS(system), f.Data)
	if err != nil {
		return config.Refusal(flags, config.OS(system), f.Data, err)
	}
	for _, o := range c.Overrides {
		fmt.Fprintf(out, "override: %s\n", o)
	}
	for _, w := range c.Warnings {
		fmt.Fprintf(out, "warning: %s\n", w)
	}
	for _, n := range c.Notes {
		fmt.Fprintf(out, "note: %s\n", n)
	}
	where := ""
	if f.Where != "" {
		where = ": " + f.Where
	}
	_, err = fmt.Fprintf(out, "%s%s: valid for %s\n", f.Name, where, system)
	return err
}

func newMigrate(to streams, table mode.Table) *cobra.Command {
	values := false
	cmd := &cobra.Command{
		Use:   "migrate FILE [flags] [-- FLAGS]",
		Short: "Print a configuration file without what has no effect, or as values of the chart",
		Long: `Print a configuration file without removed and unknown fields and without feature
gates that have no effect. Of a file for kubeadm, and of a ConfigMap or a list of
them, the part for the proxy is printed. The FILE - is standard input.

Everything else stays as it is, comments too. What was left out is listed on
standard error. The file itself is not changed. The proxy accepts what is
printed: where it would not, that is an error.

With --values, values of the chart are printed for Linux nodes with this
configuration, FLAGS of the proxy's command line, or both. What changes for the
nodes is listed on standard error.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if !values {
				return cli.OneArg(cmd, args)
			} else if cmd.ArgsLenAtDash() == 0 && len(args) > 0 {
				return nil
			}
			return fileAndFlags(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var f config.Found
			var err error
			if cmd.ArgsLenAtDash() != 0 {
				if f, err = config.FindOne(cmd.InOrStdin(), args[0]); err != nil {
					return err
				}
				args = args[1:]
			}
			flags, err := unitFlags(cmd, table, args)
			if err != nil {
				return err
			}
			var data []byte
			var notes []config.Note
			remark := "left out"
			if values {
				remark = "note"
				data, notes, err = config.ChartValues(f, flags)
			} else {
				data, notes, err = config.Migrate(f, table.Config(), host.OS)
			}
			if err != nil {
				return err
			}
			for _, n := range notes {
				fmt.Fprintf(to.err, "%s: %s\n", remark, n)
			}
			_, err = to.out.Write(data)
			return err
		},
	}
	cmd.Flags().BoolVar(&values, "values", false, "print values of the chart")
	return cmd
}
