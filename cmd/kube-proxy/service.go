// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/config"
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
	return newServiceCommandFor(&serviceCommands{to: to, modes: table, driver: scm.SystemDriver})
}

func newServiceCommandFor(s *serviceCommands) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "service COMMAND",
		Short:   "Install the proxy as a Windows service, start and stop it",
		Long:    serviceText,
		Example: serviceExample,
		Args:    cli.NoArgs,
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
		Args:  cli.NoArgs,
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
	fs.StringVar(&s.name, "name", scm.ServiceName, "`NAME` of the service")
	cli.Timeout(fs, &s.timeout, time.Minute, "how much `TIME` the service has to start or stop")
}

func (s *serviceCommands) manager() (*scm.Manager, error) {
	d, err := s.driver()
	if err != nil {
		return nil, err
	}
	if s.name == "" || len(s.name) > 256 || strings.ContainsAny(s.name, `/\`) {
		return nil, fmt.Errorf("--name: %.80q names no service: want 1 to 256 letters without slashes", s.name)
	}
	return &scm.Manager{Driver: d, Timeout: s.timeout, IsOurs: scm.RunsProxy, Log: func(text string) { fmt.Fprintln(s.to.err, text) }}, nil
}

func newServiceStatus(s *serviceCommands) *cobra.Command {
	format := "text"
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Print the state of the service",
		Long: `Print the state of the service, and how it was installed.

The exit code is 0 if it runs, 1 if it does not, and 2 if it is not installed
or cannot be asked about. kube-proxy status prints the state of the proxy in it.`,
		Args: cli.NoArgs,
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
			if err := scm.PrintStatus(s.to.out, format, status); err != nil {
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

const installText = `Install the proxy as a Windows service.

The flags are those that the service will run with. They are checked, and nothing
is installed if they cannot be used. Paths are made absolute, because a service
starts in another folder. Without --log-file, the log file is in ProgramData.`

// newServiceInstall returns the command service install, with all flags of the proxy.
func newServiceInstall(s *serviceCommands) *cobra.Command {
	o := newOptions(s.modes)
	cmd := &cobra.Command{
		Use:   "install [flags]",
		Short: "Install the service",
		Long:  installText,
		Example: `  kube-proxy service install --config C:\k\kube-proxy.yaml --kubeconfig C:\k\config
  kube-proxy service install --manifests C:\k\services --hostname-override node-a`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := s.manager()
			if err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find the path of this program: %w", err)
			}
			spec, err := s.spec(o, exe)
			if err != nil {
				return err
			}
			if err := m.Install(spec); err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.to.out, "service %s is installed and starts with the system; kube-proxy service start starts it now\n", s.name)
			return err
		},
	}
	o.register(cmd.Flags())
	listOnly(cmd.Flags(), append([]string{"enable-dsr", "log-file", "network-name", "root-hnsendpoint-name", "source-vip"}, usualSettings...)...)
	cmd.Flags().StringVar(&s.name, "name", scm.ServiceName, "`NAME` of the service")
	return cmd
}

// spec returns the service of o, or why it could not work.
func (s *serviceCommands) spec(o *options, exe string) (scm.Spec, error) {
	for _, name := range []string{"cleanup", "cleanup-iptables", "init-only", "write-config-to", "dry-run", "version"} {
		if o.FlagSet.Changed(name) {
			return scm.Spec{}, fmt.Errorf("--%s is an action that ends by itself, so a service cannot run it: leave it out", name)
		}
	}
	args, err := scm.Arguments(o.FlagSet, filepath.Abs)
	if err != nil {
		return scm.Spec{}, err
	}
	if !o.FlagSet.Changed("log-file") {
		args = append(args, "--log-file="+serviceLog(s.name))
	}
	// The service gets the flag in any case.
	if err := o.FlagSet.Set("windows-service", "true"); err != nil {
		return scm.Spec{}, fmt.Errorf("--windows-service: %w", err)
	}
	c, err := config.Load(&o.Flags, config.Windows)
	if err != nil {
		return scm.Spec{}, fmt.Errorf("the service could not start:\n%w", err)
	}
	for _, n := range c.Notes {
		fmt.Fprintf(s.to.err, "note: %s\n", n)
	}
	if err := s.checkSource(o, c); err != nil {
		return scm.Spec{}, fmt.Errorf("the service could not start: %w", err)
	}
	display := "Kubernetes service proxy"
	if s.name != scm.ServiceName {
		display += " (" + s.name + ")"
	}
	return scm.Spec{
		Name:        s.name,
		DisplayName: display,
		Description: "Programs the Host Network Service so that connections to a Kubernetes Service reach one of its endpoints.",
		Executable:  exe,
		Args:        args,
		DependsOn:   []string{"hns"},
	}, nil
}

// checkSource returns why the service could not read its objects. A file that may still
// be created, for example when the node joins the cluster, is only noted.
func (s *serviceCommands) checkSource(o *options, c *config.Config) error {
	if err := o.Modes.CheckNamed(c, o.Modes.Of(c)); err != nil {
		return err
	}
	if len(o.Manifests) > 0 {
		for _, path := range o.Manifests {
			if _, err := os.Stat(path); err != nil {
				fmt.Fprintf(s.to.err, "note: --manifests: %v\n", err)
			}
		}
		return nil
	}
	if file := c.ClientConnection.Kubeconfig; !o.FlagSet.Changed("kubeconfig") && scm.IsRelative(file) {
		return fmt.Errorf("%s: clientConnection.kubeconfig: %q is no absolute path, and a service starts in the folder of the system: want one with drive and folders", o.Flags.Config, file)
	}
	if file := c.ClientConnection.Kubeconfig; file != "" {
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(s.to.err, "note: kubeconfig %s is not there; the service cannot start before it is\n", file)
			return nil
		}
	}
	_, err := agent.KubeClient(c, buildInfo().Version).Config()
	return err
}
