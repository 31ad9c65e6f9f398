// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kube-proxy forwards the traffic of Kubernetes Services on one node. This
// package parses the command line and connects the parts of the proxy. Input is flags, a
// configuration file and the API server or manifests; output is the log, Events, metrics,
// health endpoints and what the backends program. Planning and programming are in
// platform, reading and tracking in common.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/common/logging"
	"kubeproxy/common/printable"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	to := streams{os.Stdout, logging.NewWriter(os.Stderr)}
	stop := &shutdown{cancel: cancel, log: to.err, limit: stopLimit}
	ctx = context.WithValue(ctx, shutdownKey{}, stop)
	go func() { os.Exit(stop.waitForSignal(signals)) }()
	code := execute(ctx, modes.All(), os.Args[1:], to)
	klog.Flush()
	os.Exit(code)
}

// stopLimit bounds the duration of a stop, even if a call hangs. Service managers and
// container runtimes often wait 10 s or more before they kill, some only 5 s.
const stopLimit = agent.StopTime + 500*time.Millisecond

// shutdown ends the process on signals.
type shutdown struct {
	cancel        context.CancelFunc
	log           io.Writer
	limit         time.Duration
	ignoreSignals atomic.Bool               // signals do not end the process
	requestedAt   atomic.Pointer[time.Time] // the time of the first signal, nil before
}

type shutdownKey struct{}

// withoutSignals returns a context in which signals do not end the process. A Windows
// service needs it, as a user who logs off must not end it.
func withoutSignals(ctx context.Context) context.Context {
	if e, ok := ctx.Value(shutdownKey{}).(*shutdown); ok {
		e.ignoreSignals.Store(true)
	}
	return context.WithoutCancel(ctx)
}

// waitForSignal requests a stop at the first signal. At a second one, or when the stop takes too
// long, it returns the code to exit with at once. Rules stay in force.
func (s *shutdown) waitForSignal(signals <-chan os.Signal) (code int) {
	first := <-signals
	for s.ignoreSignals.Load() {
		first = <-signals
	}
	now := time.Now()
	s.requestedAt.Store(&now)
	s.cancel()
	select {
	case second := <-signals:
		return signalCode(second)
	case <-time.After(s.limit):
		fmt.Fprintf(s.log, "kube-proxy: not ended %s after the signal, as something hangs; ending now, and what is programmed stays in force\n", s.limit)
		return signalCode(first)
	}
}

// stopBegan returns when the stop that ended ctx began.
func stopBegan(ctx context.Context) time.Time {
	if e, ok := ctx.Value(shutdownKey{}).(*shutdown); ok && e.requestedAt.Load() != nil {
		return *e.requestedAt.Load()
	}
	return time.Now()
}

// signalCode is the exit code of a process ended by a signal: "EXIT STATUS" in bash(1).
func signalCode(s os.Signal) int {
	n, _ := s.(syscall.Signal)
	return 128 + int(n)
}

// streams is where a command writes: results to out, everything else to err.
type streams struct{ out, err io.Writer }

// execute runs the command line args with the modes of table, and returns the exit code.
func execute(ctx context.Context, table mode.Table, args []string, to streams) int {
	to.err = printable.Writer(to.err)
	out := &cli.Document{Writer: to.out}
	if cli.WantsDocument(args) {
		to.out = out
	}
	root := newRoot(to, table, args...)
	usageFails(root)
	var helpErr error
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { helpErr = cli.PrintHelp(cmd) })
	root.SetArgs(args)
	err := cli.CheckCommand(root, args)
	if err != nil {
		err = &exit{exitUsage, err}
	} else {
		err = cmp.Or(root.ExecuteContext(ctx), helpErr)
	}
	if end, coded := errors.AsType[*exit](err); ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = &exit{1, errInterrupted}
		if coded {
			err = &exit{end.code, errInterrupted}
		}
	}
	code := exitCode(err, to.err)
	if to.out == out && err != nil {
		out.Fail(err, code)
	}
	return code
}

// exitCode prints err, unless its text is empty, and returns the exit code.
func exitCode(err error, w io.Writer) int {
	end, coded := errors.AsType[*exit](err)
	if err != nil && (!coded || end.err != nil) {
		fmt.Fprintf(w, "kube-proxy: %s\n", printable.Error(err))
	}
	switch {
	case err == nil:
		return 0
	case coded:
		return end.code
	}
	return 1
}

// exit ends the command with a code. Its error is nil if nothing is left to print.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *exit) Unwrap() error { return e.err }

// exitUsage is the exit code of a command line that a command does not take.
const exitUsage = 2

var errInterrupted = errors.New("interrupted")

// usageFails sets the exit code for mistakes in commands. The proxy's own is 1, as kube-proxy's.
func usageFails(cmd *cobra.Command) {
	coded := func(err error) error {
		if _, is := errors.AsType[*exit](err); err == nil || is {
			return err
		}
		return &exit{exitUsage, err}
	}
	if args := cmd.Args; args != nil {
		cmd.Args = func(c *cobra.Command, a []string) error { return coded(args(c, a)) }
	}
	if cmd.HasParent() {
		cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return coded(cli.FlagError(c, err)) })
	}
	for _, c := range cmd.Commands() {
		usageFails(c)
	}
}

// failsWith sets the exit code for errors of cmd that have none of their own.
func failsWith(code int, cmd *cobra.Command) *cobra.Command {
	coded := func(err error) error {
		if _, is := errors.AsType[*exit](err); err == nil || is {
			return err
		}
		return &exit{code, err}
	}
	run, args := cmd.RunE, cmd.Args
	cmd.RunE = func(c *cobra.Command, a []string) error { return coded(run(c, a)) }
	if args != nil {
		cmd.Args = func(c *cobra.Command, a []string) error { return coded(args(c, a)) }
	}
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return coded(cli.FlagError(c, err)) })
	return cmd
}

// options are the values of the command line.
type options struct {
	agent.Options
	version  versionFlag
	dryRun   bool
	logsJSON bool // as the configuration says
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

func newRoot(to streams, table mode.Table, args ...string) *cobra.Command {
	o := newOptions(table)
	root := &cobra.Command{
		Use:           "kube-proxy [flags]",
		Short:         "Forward the traffic of Kubernetes Services",
		Long:          rootText,
		Example:       rootExample,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.version != "" {
				return printVersion(to.out, o.version)
			}
			return o.lastError(run(cmd.Context(), o, to), to.err)
		},
	}
	root.SetOut(to.out)
	root.SetErr(to.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		o.logsJSON = slices.Contains(args, "--logging-format="+logging.JSON) // also behind the wrong flag
		return o.lastError(cli.FlagError(cmd, err), to.err)
	})
	o.register(root.Flags())
	root.AddCommand(newRender(to, table), newExplain(to, table), newDiff(to, table), newConfig(to, table), newServiceCommand(to, table),
		newStatus(to, table), newTop(to, table), newDoctor(to, table), newSupportDump(to, table), newHNSState(to, table), newVersion(to))
	cli.CheckGenerated(root)
	cli.RegisterCompletion(root, table, buildInfo().Version)
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
	fs.SortFlags = false
}

// lastError writes an error of the proxy as a line of its log where that is JSON.
func (o *options) lastError(err error, w io.Writer) error {
	end, coded := errors.AsType[*exit](err)
	if err == nil || !o.logsJSON && o.FlagSet.Lookup("logging-format").Value.String() != logging.JSON {
		return err
	}
	if coded {
		return end
	}
	logging.LastError(w, err)
	return &exit{code: 1}
}

// usualSettings are those that the help of every command lists which takes settings.
var usualSettings = []string{"config", "manifests", "kubeconfig", "hostname-override", "proxy-mode", "cluster-cidr"}

// registerReading registers all flags but those that select an action of the proxy.
func (o *options) registerReading(fs *pflag.FlagSet) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.register(all)
	listOnly(all, usualSettings...)
	all.VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "cleanup", "cleanup-iptables", "cleanup-ipvs", "init-only", "write-config-to", "dry-run", "version":
		case "manifests":
			f.Usage = strings.Replace(f.Usage, " and watch it", "", 1) + "; - is standard input"
			fs.AddFlag(f)
		default:
			fs.AddFlag(f)
		}
	})
}

// registerAssign registers --assign-cluster-ips.
func registerAssign(fs *pflag.FlagSet, to *[]string) {
	fs.StringSliceVar(to, "assign-cluster-ips", nil, "assign ClusterIPs from these `CIDRS`, one of each family, and NodePorts to Services in manifests without, such as those of a chart")
}

// listOnly makes help list these flags, and refer to kube-proxy --help for others.
func listOnly(fs *pflag.FlagSet, names ...string) {
	fs.VisitAll(func(f *pflag.Flag) {
		if slices.Contains(names, f.Name) {
			return
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[cli.SettingAnnotation] = []string{"true"}
	})
}
