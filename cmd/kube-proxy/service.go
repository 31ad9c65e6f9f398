// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/usage"
	"kubeproxy/cmd/kube-proxy/internal/winservice"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/windows/scm"
)

const serviceText = `Install the proxy as a Windows service, start and stop it.

The service starts with the system, after the Host Network Service, and is
started again when it fails. Stopping or uninstalling it leaves what it
programmed in force; kube-proxy --cleanup removes that.`

const serviceExample = `  kube-proxy service install --config C:\k\kube-proxy.yaml --kubeconfig C:\k\config
  kube-proxy service start
  kube-proxy service status`

// serviceCommands is what the subcommands of service share.
type serviceCommands struct {
	name    string
	timeout time.Duration
	to      streams
	modes   mode.Table
	driver  func() (scm.Driver, error)
}

func newServiceCommand(to streams, table mode.Table) *cobra.Command {
	return newServiceCommandFor(&serviceCommands{to: to, modes: table, driver: winservice.Driver})
}

func newServiceCommandFor(s *serviceCommands) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "service COMMAND",
		Short:   "Install the proxy as a Windows service, start and stop it",
		Long:    serviceText,
		Example: serviceExample,
		Args:    usage.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if _, err := s.driver(); err != nil {
				return err
			}
			return errors.New("service wants a command: install, uninstall, start, stop or status")
		},
	}
	cmd.AddCommand(newServiceInstall(s), newServiceStatus(s),
		s.command("start", "Start the service and wait until it runs", func(cmd *cobra.Command, m *scm.Manager) (string, error) {
			return "runs", m.Start(cmd.Context(), s.name)
		}),
		s.command("stop", "Stop the service; what it programmed stays in force", func(cmd *cobra.Command, m *scm.Manager) (string, error) {
			return "is stopped; what it programmed stays in force", m.Stop(cmd.Context(), s.name)
		}),
		s.command("uninstall", "Stop the service if it runs, and remove it", func(cmd *cobra.Command, m *scm.Manager) (string, error) {
			return "is uninstalled; what it programmed stays in force until kube-proxy --cleanup", m.Uninstall(cmd.Context(), s.name)
		}))
	return cmd
}

// command returns a subcommand that runs do and prints done.
func (s *serviceCommands) command(name, short string, do func(*cobra.Command, *scm.Manager) (done string, err error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name + " [flags]",
		Short: short,
		Args:  usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := s.manager()
			if err != nil {
				return err
			}
			done, err := do(cmd, m)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.to.out, "service %s %s\n", s.name, done)
			return err
		},
	}
	s.register(cmd.Flags())
	return cmd
}

func (s *serviceCommands) register(fs *pflag.FlagSet) {
	fs.StringVar(&s.name, "name", winservice.Name, "`NAME` of the service")
	fs.DurationVar(&s.timeout, "timeout", time.Minute, "how much `TIME` the service has to start or stop")
}

func (s *serviceCommands) manager() (*scm.Manager, error) {
	d, err := s.driver()
	if err != nil {
		return nil, err
	}
	if s.name == "" || len(s.name) > 256 || strings.ContainsAny(s.name, `/\`) {
		return nil, fmt.Errorf("--name: %.80q names no service: want 1 to 256 letters without slashes", s.name)
	}
	return &scm.Manager{Driver: d, Timeout: s.timeout, IsOurs: winservice.RunsProxy, Log: func(text string) { fmt.Fprintln(s.to.err, text) }}, nil
}

func newServiceStatus(s *serviceCommands) *cobra.Command {
	format := "text"
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Print the state of the service",
		Long: `Print the state of the service, and how it was installed.

The exit code is 0 if it runs, 1 if it does not, and 2 if it is not installed
or cannot be asked about. kube-proxy status prints the state of the proxy in it.`,
		Args: usage.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if format != "text" && format != "json" {
				return &exit{exitUnreachable, fmt.Errorf("--output: %q is unknown: want text or json", format)}
			}
			m, err := s.manager()
			if err != nil {
				return &exit{exitUnreachable, err}
			}
			status, err := m.Status(s.name)
			if err != nil {
				return &exit{exitUnreachable, err}
			}
			if err := winservice.Print(s.to.out, format, status); err != nil {
				return &exit{exitUnreachable, err}
			}
			if status.State != scm.Running {
				return &exit{exitNotOK, nil}
			}
			return nil
		},
	}
	s.register(cmd.Flags())
	cmd.Flags().StringVarP(&format, "output", "o", format, "`FORMAT` of what is printed: text or json")
	return cmd
}
