// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/completion"
	"kubeproxy/cmd/kube-proxy/internal/help"
	"kubeproxy/common/printable"
	"kubeproxy/common/suggest"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// options are the values of the command line.
type options struct {
	agent.Options
	version versionFlag
	dryRun  bool
}

// newOptions returns options for the modes of table.
func newOptions(table mode.Table) *options { return &options{Options: *agent.NewOptions(table)} }

const rootText = `Forward the traffic of Kubernetes Services on this node.

The proxy watches Services and EndpointSlices, and programs the node so that
connections to a Service's addresses reach one of its endpoints.`

const rootExample = `  kube-proxy --manifests ./services --hostname-override node-a
  kube-proxy render --manifests ./services --hostname-override node-a
  kube-proxy config validate kube-proxy.yaml
  kube-proxy status
  kube-proxy --cleanup`

func newRoot(to streams, table mode.Table) *cobra.Command {
	o := newOptions(table)
	root := &cobra.Command{
		Use:           "kube-proxy [flags]",
		Short:         "Forward the traffic of Kubernetes Services",
		Long:          rootText,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.version != "" {
				return printVersion(to.out, o.version)
			}
			return run(cmd.Context(), o, to)
		},
	}
	root.SetOut(to.out)
	root.SetErr(to.err)
	root.SetHelpFunc(help.Print)
	root.SetFlagErrorFunc(flagError)
	o.register(root.Flags())
	root.AddCommand(newRender(to, table), newExplain(to, table), newDiff(to, table), newConfig(to, table), newServiceCommand(to, table),
		newStatus(to, table), newTop(to, table), newDoctor(to, table), newSupportDump(to, table), newHNSState(to, table), newVersion(to))
	checkGenerated(root)
	completion.Register(root, table, buildInfo().Version)
	return root
}

func (o *options) register(fs *pflag.FlagSet) {
	o.FlagSet = fs
	// As everywhere in Kubernetes, --cluster_cidr is --cluster-cidr.
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	o.Flags.Register(fs)
	fs.StringArrayVar(&o.Manifests, "manifests", nil, "read Services, EndpointSlices, Endpoints, Nodes and ServiceCIDRs from this file or directory `PATH` and watch it; repeatable")
	fs.BoolVar(&o.Fallback, "proxy-mode-fallback", false, "if --proxy-mode cannot work, try the next of "+strings.Join(o.Modes.Fallbacks(config.Linux).Names(), ", ")+", as in old versions")
	fs.BoolVar(&o.Exposed, "expose-admin-pages", false, "serve /services, /traffic, /configz, /flagz, /statusz and profiling of the metrics server to every client, not to those on loopback alone")
	fs.StringVar(&o.CertFile, "tls-cert-file", "", "serve health and metrics by HTTPS with the certificate in this `FILE`, in PEM; it is read again when it changes")
	fs.StringVar(&o.KeyFile, "tls-private-key-file", "", "`FILE` with the key of --tls-cert-file")
	fs.BoolVar(&o.dryRun, "dry-run", false, "print what would be changed on this node, and exit without changing it")
	fs.Var(&o.version, "version", "print the version and exit; --version=raw prints how it was built, too")
	fs.Lookup("version").NoOptDefVal = "true"
	fs.SortFlags = false
}

// registerReading registers the flags for a command that changes nothing: all but those
// that select an action of the proxy.
func (o *options) registerReading(fs *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.register(all)
	all.VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "cleanup", "cleanup-iptables", "cleanup-ipvs", "init-only", "write-config-to", "dry-run", "version":
		case "manifests":
			f.Usage = strings.Replace(f.Usage, " and watch it", "", 1)
			fs.AddFlag(f)
		default:
			fs.AddFlag(f)
		}
	})
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	names := commandNames(cmd)
	near := suggest.Closest(args[0], names)
	switch {
	case near != "":
		return fmt.Errorf("unknown command %.80q; did you mean %q?", args[0], near)
	case cmd.HasParent() && len(names) > 0:
		return fmt.Errorf("unknown command %.80q: %s wants %s", args[0], commandPath(cmd), alternatives(names))
	}
	return fmt.Errorf("unexpected argument %.80q: want flags only; %s --help lists them", args[0], cmd.CommandPath())
}

// oneArg requires exactly one argument. Its error uses the name in the usage of the
// command.
func oneArg(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	_, rest, _ := strings.Cut(cmd.Use, " ")
	name, _, _ := strings.Cut(rest, " ")
	return fmt.Errorf("%s wants one %s, not %d: %s", commandPath(cmd), name, len(args), cmd.UseLine())
}

// requireCommand is the action of a command that only groups others.
func requireCommand(cmd *cobra.Command, _ []string) error {
	return fmt.Errorf("%s wants a command: %s", commandPath(cmd), alternatives(commandNames(cmd)))
}

// commandNames lists the commands of cmd that help shows.
func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// commandPath names cmd in an error, which begins with the name of the program.
func commandPath(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// alternatives formats names as "a, b or c".
func alternatives(names []string) string {
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// checkGenerated makes the commands that cobra adds handle mistakes like the others.
func checkGenerated(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args, cmd.RunE = noArgs, requireCommand
			for _, shell := range cmd.Commands() {
				shell.Args = noArgs
			}
		case "help":
			cmd.Args = knownTopic
		}
	}
}

// knownTopic checks the topic of help.
func knownTopic(cmd *cobra.Command, args []string) error {
	about, rest, err := cmd.Root().Find(args)
	if err != nil || len(rest) == 0 {
		return err
	}
	return noArgs(about, rest)
}

// flagError converts an error of pflag into one line with the flag, its value and the
// values that it accepts.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return unknownFlag(cmd, unknown)
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		name, usage := pflag.UnquoteUsage(missing.GetFlag())
		return fmt.Errorf("--%s wants a value, %s: %s", missing.GetFlag().Name, name, usage)
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if invalid.GetFlag().Value.Type() == "gates" { // the cause names the gate
			return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, invalid.Unwrap())
		}
		return fmt.Errorf("--%s: %q is %s", invalid.GetFlag().Name, invalid.GetValue(), invalidValueText(invalid))
	}
	return errors.New(printable.Text(err.Error()))
}

func unknownFlag(cmd *cobra.Command, e *pflag.NotExistError) error {
	name := printable.Text(e.GetSpecifiedName())
	if letters := printable.Text(e.GetSpecifiedShortnames()); letters != "" {
		// -name is a common slip for --name.
		if cmd.Flags().Lookup(letters) != nil {
			return fmt.Errorf("unknown flag -%s; did you mean --%s?", letters, letters)
		}
		return fmt.Errorf("unknown flag -%s; %s --help lists all", letters, cmd.CommandPath())
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := suggest.Closest(name, names); near != "" {
		return fmt.Errorf("unknown flag --%s; did you mean --%s?", name, near)
	}
	return fmt.Errorf("unknown flag --%s; %s --help lists all", name, cmd.CommandPath())
}

// invalidValueText describes why a flag's value is invalid and which values it accepts.
func invalidValueText(e *pflag.InvalidValueError) string {
	switch e.GetFlag().Value.Type() {
	case "bool":
		return "neither true nor false"
	case "int32", "Level":
		return "no number it accepts: want a whole number that fits into 32 bits"
	case "float32":
		return "no number"
	case "duration":
		return "no duration: want one such as 30s or 1h30m"
	}
	return "not accepted: " + printable.Text(strings.ReplaceAll(e.Unwrap().Error(), "\n", " "))
}
