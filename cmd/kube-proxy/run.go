// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/examine"
	"kubeproxy/cmd/kube-proxy/internal/host"
	filewriter "kubeproxy/common/files"
	"kubeproxy/common/logging"
	"kubeproxy/common/plandiff"
	"kubeproxy/common/takeover"
	"kubeproxy/common/terminal"
	"kubeproxy/config"
	"kubeproxy/platform/modes"
	"kubeproxy/platform/windows/hns"
	"kubeproxy/platform/windows/scm"
)

// run is the command without a subcommand: an action that ends by itself, or the proxy.
func run(ctx context.Context, o *options, to streams) error {
	if !o.dryRun && o.Flags.WriteConfigTo == "" {
		outliveReaders()
	}
	c, err := o.Load(host.OS)
	o.logsJSON = err == nil && c.Logging.Format == logging.JSON
	work := func(ctx context.Context, to streams, started func()) error {
		if err != nil {
			return err
		}
		return act(ctx, &action{o, c, started}, to)
	}
	if o.asService(c) {
		service := scm.Runner{LogFile: cmp.Or(o.Flags.LogFile, serviceLog(scm.ServiceName)), MaxSize: int(o.Flags.LogFileMaxSize), Restart: agent.ErrRestart}
		// A user who logs off ends programs, but not services. See
		// https://learn.microsoft.com/windows/console/handlerroutine
		return service.Run(withoutSignals(ctx), func(ctx context.Context, log io.Writer, started func()) error {
			return work(ctx, streams{to.out, log}, started)
		})
	}
	if err := work(ctx, to, nil); !errors.Is(err, agent.ErrRestart) {
		return err
	}
	return nil // the supervisor restarts the process
}

// outliveReaders has a write fail whose reader, as journald or a log shipper, has ended, where it
// would end the process: https://pkg.go.dev/os/signal#hdr-SIGPIPE. Programs that the process starts
// do not inherit this. Commands that print and end do so with their reader.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// action is what the command without a subcommand does.
type action struct {
	options *options
	config  *config.Config
	started func() // called when the proxy runs, if set
}

// act runs the action that the command line selects.
func act(ctx context.Context, a *action, to streams) error {
	o, c := a.options, a.config
	log, err := logging.Start(&c.Logging, to.err)
	defer klog.StopFlushDaemon()
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, log.Logger)
	agent.LogConfigIssues(log.Logger, c)
	agent.LimitMemory(log.Logger, os.DirFS("/"), o.Modes.Of(c))
	switch {
	case o.Flags.WriteConfigTo != "":
		return writeConfig(c, o.Flags.WriteConfigTo, to.out)
	case o.dryRun:
		return o.rehearse(ctx, c, to)
	case o.Flags.Cleanup:
		return o.cleanup(ctx, c)
	case o.Flags.InitOnly:
		return o.prepare(ctx, c)
	}
	process := agent.Process{Build: buildInfo().Metric(), Logs: log, Started: a.started, StopBegan: stopBegan}
	return agent.ThisSystem().Run(ctx, &o.Options, process, c)
}

// prepare prepares the node for a proxy that lacks the privileges.
func (o *options) prepare(ctx context.Context, c *config.Config) error {
	return errors.Join(host.Prepare(ctx, c), modes.Prepare(ctx, o.Modes.Of(c), agent.Setup(c)))
}

// rehearse prints what the proxy, or --init-only, would change, or --cleanup remove.
func (o *options) rehearse(ctx context.Context, c *config.Config, to streams) error {
	switch {
	case o.Flags.Cleanup:
		return o.listLeftovers(ctx, c, to.out)
	case o.Flags.InitOnly:
		return o.listPending(ctx, c, to.out)
	}
	x := examine.Diff{
		Proxy: &o.Options, Version: buildInfo().Version, From: []string{examine.FromNode}, Timeout: rehearsalTimeout, Settings: true, Report: writeLines(to.err),
	}
	found, err := x.Run(ctx, c)
	if err != nil {
		return fmt.Errorf("--dry-run: %w", err)
	}
	return plandiff.View{All: true, Colour: terminal.Coloured(to.out), Width: terminal.Columns(to.out)}.Print(to.out, found)
}

// rehearsalTimeout is the API server's time to answer: 30 s alone for Node and ServiceCIDRs.
const rehearsalTimeout = 45 * time.Second

// listPending prints what prepare would change.
func (o *options) listPending(ctx context.Context, c *config.Config, to io.Writer) error {
	lines, err := modes.Pending(ctx, o.Modes.Of(c), agent.Setup(c))
	for _, line := range append(host.PendingSettings(c), lines...) {
		fmt.Fprintln(to, line)
	}
	return err
}

// listLeftovers prints what --cleanup would remove.
func (o *options) listLeftovers(ctx context.Context, c *config.Config, to io.Writer) error {
	all, err := o.Targets(ctx, c)
	for _, t := range all {
		found, findErr := t.Find(ctx)
		switch {
		case takeover.AsUnchecked(findErr) != nil:
			fmt.Fprintf(to, "? %s: %v\n", t, findErr)
		case findErr != nil:
			err = errors.Join(err, fmt.Errorf("%s: %w", t, findErr))
		case found != "" && (!t.IPVS || o.Flags.CleanupIPVS):
			fmt.Fprintf(to, "- %s: %s\n", t, found)
		}
	}
	return err
}

// writeConfig writes the configuration to a file, or to out if path is -.
func writeConfig(c *config.Config, path string, out io.Writer) error {
	if path == "-" {
		return c.Write(out)
	}
	if err := filewriter.Replace(path, 0o644, c.Write); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// asService returns whether this process runs as a Windows service. An action that ends
// by itself does not, whatever the configuration contains. c is nil if it cannot be used.
func (o *options) asService(c *config.Config) bool {
	if host.OS != config.Windows || o.dryRun || o.Flags.Cleanup || o.Flags.InitOnly || o.Flags.WriteConfigTo != "" {
		return false
	}
	if c == nil {
		flag := o.FlagSet.Lookup("windows-service")
		return flag != nil && flag.Value.String() == "true"
	}
	return c.WindowsRunAsService
}

// serviceLog is the default log file of a service, in the folder of the state file.
func serviceLog(name string) string { return scm.LogFile(filepath.Dir(hns.StateFile()), name) }

// cleanup removes what any mode ever installed, and prints what it removed. Virtual
// servers stay with --cleanup-ipvs=false. A proxy that runs would make it again, and its clients
// would lose connections for nothing, so then cleanup touches nothing.
func (o *options) cleanup(ctx context.Context, c *config.Config) error {
	if who, err := host.LeaseHolder(c.ProxyName)(ctx); err == nil {
		return fmt.Errorf("clean up: nothing was removed: %s programs this node and would make it again; stop it first", who)
	}
	all, err := o.Targets(ctx, c)
	if err != nil {
		return fmt.Errorf("clean up: %w", err)
	}
	skip := func(p takeover.Target) string {
		if p.IPVS && !o.Flags.CleanupIPVS {
			return "--cleanup-ipvs=false"
		}
		return ""
	}
	return takeover.Cleanup(ctx, all, takeover.CleanupOptions{Skip: skip, Privileges: host.Privileges})
}
