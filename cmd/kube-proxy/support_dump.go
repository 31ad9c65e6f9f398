// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/cmd/kube-proxy/internal/collect"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/terminal"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/windows/scm"
)

const supportText = `Collect what a maintainer asks for into one archive.

It holds the version, the configuration, the state of the running proxy and of
each Service, the rules read back, what would change, what doctor finds, Events,
counters of the kernel, and the end of the log: that of --log-file, of the unit
kube-proxy, and of containers kube-proxy in the namespace kube-system, or in that
of the pod in which the command runs. Tokens, keys and certificates are removed.
Names and addresses of Services, pods and nodes stay: read the archive before you
give it to others. Give the command the same flags as the proxy. It mostly needs
the rights of root, and changes nothing.

Without FILE, the archive is named after the node and the time. FILE is a new
file, a device or a named pipe. With - the archive goes to standard output. It
has at most 50 MB. What could not be collected is named in the archive, in
` + collect.Contents + `, and on standard error.

The exit code is 0 if all was collected, 1 if a part was not, and 2 if there is
no archive.`

const supportExample = `  kube-proxy support-dump
  kube-proxy support-dump --config kube-proxy.yaml /tmp/dump.tar.gz
  kubectl -n kube-system exec kube-proxy-x7k2p -- kube-proxy support-dump - > dump.tar.gz`

// supportOptions are the flags of support-dump.
type supportOptions struct {
	options
	server  string
	timeout time.Duration
}

func newSupportDump(to streams, table mode.Table) *cobra.Command {
	s := &supportOptions{options: *newOptions(table)}
	cmd := &cobra.Command{
		Use:     "support-dump [FILE] [flags]",
		Short:   "Collect what a maintainer asks for",
		Long:    supportText,
		Example: supportExample,
		RunE:    func(cmd *cobra.Command, args []string) error { return s.run(cmd.Context(), to, args) },
	}
	s.registerReading(cmd.Flags())
	cmd.Flags().StringVar(&s.server, "server", "", reading.ServerHelp)
	cli.Timeout(cmd.Flags(), &s.timeout, 30*time.Second, "how much `TIME` each part has")
	return failsWith(exitUnreachable, cmd)
}

func (s *supportOptions) run(ctx context.Context, to streams, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("support-dump wants one FILE, not %d", len(args))
	}
	if out, ok := to.out.(*os.File); ok && len(args) > 0 && args[0] == "-" && terminal.Attached(out) {
		return errors.New("support-dump -: standard output is a terminal, and the archive is compressed: want a FILE, or a pipe")
	}
	c, err := config.Load(&s.Flags, host.OS)
	if err != nil {
		return err
	}
	node, err := agent.NodeName(c)
	if err != nil {
		return err
	}
	server, err := (&reading.Server{Modes: s.Modes, Addr: s.server, Config: s.Flags.Config}).Address()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("kube-proxy-%s-%s", node, time.Now().UTC().Format("20060102T150405"))
	dump := collect.Options{
		Proxy: &s.Options, Build: fmt.Sprintf("%#v", buildInfo()), Version: buildInfo().Version, Server: server, Timeout: s.timeout,
		LogFiles: []string{s.Flags.LogFile, serviceLog(scm.ServiceName)},
	}.Dump(c, name)
	dump.Progress = progressOn(to.err)
	path := name + ".tar.gz"
	if len(args) > 0 {
		path = args[0]
	}
	result, err := collect.Write(ctx, dump, path, to.out)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if path != "-" {
		fmt.Fprintln(to.out, path)
	}
	if len(result.Failed) > 0 {
		return &exit{exitNotOK, fmt.Errorf("not collected: %s; %s in the archive says why", strings.Join(result.Failed, ", "), collect.Contents)}
	}
	return nil
}

// progressOn returns a function that shows progress on w, nil unless w is a terminal.
func progressOn(w io.Writer) func(part, of int, name string) {
	if !terminal.Attached(os.Stderr) {
		return nil
	}
	return func(part, of int, name string) { fmt.Fprintf(w, "[%d/%d] %s\n", part, of, name) }
}
