// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/cmd/kube-proxy/internal/examine"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/document"
	"kubeproxy/common/plandiff"
	"kubeproxy/common/terminal"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

const diffText = `Say what would change on a node, without touching anything.

The new state is in --manifests, or else in the API server of --kubeconfig. The
old state is --from: what this node has installed, the API server, or other
manifests. The command prints what would be added, changed and removed, and what
the mode would do otherwise than the Services of the new state ask. With -o diff
it prints the rules of both states as a unified diff.

Any user can compare manifests and the API server on any system. What a node has
installed is read back from its kernel or HNS. That needs the rights of the
proxy, mostly those of root. Settings that neither flags nor --config give are
those of its last run here.

The exit code is 0 if nothing differs, 1 if something does, and 2 if the states
could not be compared. An object in manifests that cannot be used is reported and
counts as missing; if nothing else differs, the exit code is 2.`

const diffExample = `  kube-proxy diff --kubeconfig /etc/kubernetes/kube-proxy.conf
  kube-proxy diff --manifests ./services --hostname-override node-a
  kube-proxy diff --from ./services --manifests ./services.new --hostname-override node-a -o diff
  kube-proxy diff --from api --kubeconfig ~/.kube/config --manifests ./services.new --hostname-override node-a`

// The formats for people.
const (
	asPlan = "plan"
	asDiff = "diff"
)

// diffOptions are the flags of diff.
type diffOptions struct {
	options
	compared examine.Diff
	format   string
	all      bool
	assign   []string
}

func newDiff(to streams, table mode.Table) *cobra.Command {
	d := &diffOptions{options: *newOptions(table)}
	cmd := &cobra.Command{
		Use:     "diff [flags]",
		Short:   "Say what would change on a node",
		Long:    diffText,
		Example: diffExample,
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context(), to) },
	}
	d.registerReading(cmd.Flags())
	registerAssign(cmd.Flags(), &d.assign)
	fs := cmd.Flags()
	fs.StringArrayVar(&d.compared.From, "from", []string{examine.FromNode}, "the old `STATE`: node for what this node has installed, api for the API server, or a file or directory of manifests; paths are repeatable")
	fs.StringVarP(&d.format, "output", "o", asPlan, "`FORMAT` of what is printed: plan, diff for the rules of both states as diff -u prints them, "+document.DataForms)
	fs.BoolVar(&d.all, "all", false, "print all of a long list, not only its beginning")
	fs.StringVar(&d.compared.Server, "server", "", reading.ServerHelp)
	cli.Timeout(fs, &d.compared.Timeout, 45*time.Second, "how much `TIME` the API server has to answer")
	return failsWith(plandiff.ExitFailed, cmd)
}

func (d *diffOptions) run(ctx context.Context, to streams) error {
	if err := document.CheckOutput(d.format, asPlan, asDiff); err != nil {
		return err
	}
	system := d.systemOfMode()
	if slices.Equal(d.compared.From, []string{examine.FromNode}) {
		system = host.OS
	}
	c, err := config.Load(&d.Flags, system)
	if err != nil {
		return err
	}
	if d.compared.Assign, err = reading.Ranges(d.assign); err != nil {
		return err
	}
	d.compared.Proxy, d.compared.Version, d.compared.Report = &d.Options, buildInfo().Version, writeLines(to.err)
	stopNotice := terminal.NoticeIfSlow(to.err, "kube-proxy: still reading both states ...")
	found, err := d.compared.Run(ctx, c)
	stopNotice()
	if err != nil {
		return err
	}
	view := plandiff.View{All: d.all, Colour: terminal.Coloured(to.out), Width: terminal.Columns(to.out)}
	switch d.format {
	case asPlan:
		err = view.Print(to.out, found)
	case asDiff:
		err = view.PrintText(to.out, found)
	default:
		err = document.WriteData(to.out, d.format, found)
	}
	if err != nil {
		return fmt.Errorf("print the difference: %w", err)
	}
	if code := found.ExitCode(); code == 0 && d.compared.Unusable {
		return errors.New("nothing else differs, but some objects cannot be used")
	} else if code != 0 {
		return &exit{code: code}
	}
	return nil
}
