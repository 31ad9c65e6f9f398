// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/cmd/kube-proxy/internal/examine"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/doctor"
	"kubeproxy/common/document"
	"kubeproxy/common/terminal"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

const doctorText = `Find what keeps the proxy, or its traffic, from working on this node.

It checks the node, the API server and the proxy that runs here. That none runs is
a finding, too; with --before-start, which plans a start, it is none. For each
finding it prints what it is, why it matters and to whom, the command that
corrects it if one does that harms nobody, and where to read more. Settings that
neither flags nor --config give are those of the proxy's last run. It changes
nothing, but the kernel may load modules that it is asked for.

Without --proxy-mode it checks the mode of the running proxy, or of the rules that
one left, or the one that would be selected. It needs the rights of the proxy,
mostly those of root.

The exit code is 0 if nothing is found, 1 if something is, and 2 if a check
failed.`

const doctorExample = `  kube-proxy doctor
  kube-proxy doctor --config kube-proxy.yaml --kubeconfig /etc/kubernetes/kube-proxy.conf
  kube-proxy doctor --all-modes -o json | jq -r '.findings[] | .id + ": " + .what'`

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	options
	format   string
	all      bool
	examined examine.Options
}

func newDoctor(to streams, table mode.Table) *cobra.Command {
	d := &doctorOptions{options: *newOptions(table)}
	cmd := &cobra.Command{
		Use:     "doctor [flags]",
		Short:   "Find what keeps the proxy from working on this node",
		Long:    doctorText,
		Example: doctorExample,
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context(), to) },
	}
	d.registerReading(cmd.Flags())
	cmd.Flags().BoolVar(&d.examined.AllModes, "all-modes", false, "look at every mode of this system, not only at the one of the proxy")
	cmd.Flags().BoolVar(&d.all, "all", false, "print all of a long list, not only its beginning")
	cmd.Flags().BoolVar(&d.examined.BeforeStart, "before-start", false, "have the findings for a start of the proxy, so that none has to run")
	cmd.Flags().StringVarP(&d.format, "output", "o", asText, "`FORMAT` of what is printed: text, "+document.DataForms)
	cmd.Flags().StringVar(&d.examined.Server, "server", "", reading.ServerHelp)
	cli.Timeout(cmd.Flags(), &d.examined.Timeout, 45*time.Second, "how much `TIME` each check has")
	return failsWith(doctor.ExitFailed, cmd)
}

func (d *doctorOptions) run(ctx context.Context, to streams) error {
	if err := document.CheckOutput(d.format, asText); err != nil {
		return err
	}
	c, err := config.Load(&d.Flags, host.OS)
	if err != nil {
		return err
	}
	d.examined.Proxy, d.examined.Version = &d.Options, buildInfo().Version
	endNotice := terminal.NoticeIfSlow(to.err, "kube-proxy: still looking for the proxy and its mode ...")
	x, err := examine.Find(ctx, d.examined, c)
	endNotice()
	if err != nil {
		return err
	}
	checks, err := x.Checks(ctx)
	if err != nil {
		return err
	}
	r := doctor.Runner{
		Checks: checks, Timeout: d.examined.Timeout, Patience: terminal.NoticeDelay,
		Progress: func(text string) { fmt.Fprintf(to.err, "kube-proxy: %s\n", text) },
	}
	report := x.Report()
	report.Checks, report.Findings = r.Run(ctx)
	return d.print(to.out, report)
}

func (d *doctorOptions) print(w io.Writer, r *doctor.Report) error {
	write := doctor.View{Colour: terminal.Coloured(w), Width: terminal.Columns(w), All: d.all}.Text
	if d.format != asText {
		write = func(w io.Writer, r *doctor.Report) error { return r.Data(w, d.format) }
	}
	if err := write(w, r); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	if code := r.ExitCode(); code != 0 {
		return &exit{code: code}
	}
	return nil
}
