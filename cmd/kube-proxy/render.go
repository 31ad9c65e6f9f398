// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/document"
	"kubeproxy/common/printable"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/terminal"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
)

const renderText = `Print what a node would install, without touching anything.

Any user can do this on any system. The same manifests and flags give the same
text. All that is known of the node is its Node manifest. Faults in the manifests
are printed on standard error. The rest is printed nevertheless, and the exit
code is 1 if a file or an object could not be used, or a Service of which nothing
can be served. Charts have no addresses; --assign-cluster-ips assigns them:

  helm template CHART |
    kube-proxy render --manifests - --assign-cluster-ips 10.96.0.0/16

With --proxy-mode kernelspace the node is a Windows node. With --hns-state and
the content of its HNS, the command also says what would change. Otherwise it
assumes an l2bridge network, or an overlay if a source VIP is set.`

// renderOptions are the flags and arguments of render.
type renderOptions struct {
	options
	format   document.Format
	hnsState string
	assign   []string
}

func newRender(to streams, table mode.Table) *cobra.Command {
	r := &renderOptions{options: *newOptions(table)}
	cmd := &cobra.Command{
		Use:     "render --manifests PATH [flags]",
		Short:   "Print what a node would install",
		Long:    renderText,
		Example: "  kube-proxy render --manifests ./services --hostname-override node-a -o text",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return r.run(cmd.Context(), to) },
	}
	r.registerReading(cmd.Flags())
	registerAssign(cmd.Flags(), &r.assign)
	cmd.Flags().StringVarP((*string)(&r.format), "output", "o", string(document.Text), "`FORMAT` of what is printed: text, as nft -f, iptables-restore, or ipvsadm -R and ipset restore take it, or json")
	cmd.Flags().StringVar(&r.hnsState, "hns-state", "", "`FILE` with what the HNS of a Windows node holds, in JSON")
	return cmd
}

func (r *renderOptions) run(ctx context.Context, to streams) error {
	if err := r.format.Check(); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	if len(r.Manifests) == 0 {
		return fmt.Errorf("nothing to read Services from: want --manifests PATH")
	}
	c, err := config.Load(&r.Flags, r.system())
	if err != nil {
		return err
	}
	for _, w := range c.Warnings {
		fmt.Fprintf(to.err, "warning: %s\n", w)
	}
	for _, o := range c.Overrides {
		fmt.Fprintf(to.err, "note: %s\n", o)
	}
	for _, n := range c.Notes {
		fmt.Fprintf(to.err, "note: %s\n", n)
	}
	node, err := agent.NodeName(c)
	if err != nil {
		return err
	}
	defer terminal.NoticeIfSlow(os.Stderr, "kube-proxy: still reading the manifests ...")()
	return render(ctx, c, r, node, to)
}

// system returns the operating system of the rendered node.
func (r *renderOptions) system() config.OS {
	if r.hnsState != "" {
		return config.Windows
	}
	return r.systemOfMode()
}

// systemOfMode returns the operating system of --proxy-mode.
func (o *options) systemOfMode() config.OS {
	name := o.FlagSet.Lookup("proxy-mode").Value.String()
	for _, d := range o.Modes {
		if string(d.Name) == name {
			return d.OS
		}
	}
	return config.Linux
}

func render(ctx context.Context, c *config.Config, r *renderOptions, node string, to streams) error {
	to.out = printable.Writer(to.out)
	d := r.Modes.Of(c)
	ranges, err := reading.Ranges(r.assign)
	if err != nil {
		return err
	}
	reader := reading.Reader{Config: c, Mode: d, Node: node, Assign: ranges, Report: writeLines(to.err)}
	tracker, loadErr := reader.Manifests(ctx, r.Manifests)
	want := tracker.Latest()
	if want == nil {
		return loadErr
	}
	for _, f := range service.Families {
		if text := report.ClosedNodePorts(want, f, nil); text != "" {
			fmt.Fprintf(to.err, "note: %s\n", text)
		}
	}
	note := func(text string) { fmt.Fprintf(to.err, "note: %s\n", text) }
	for _, line := range reading.LocalhostListeners(d, want) {
		note(line)
	}
	objects, doc, err := modes.Render(d, want, mode.Rendering{Config: c, Format: r.format, State: r.hnsState, Note: note})
	if err == nil {
		err = r.format.Write(to.out, doc, func(b *bufio.Writer) { b.WriteString(objects.String()) })
	}
	switch {
	case err != nil && r.hnsState != "":
		return err // it names the flag
	case err != nil:
		return fmt.Errorf("render: %w", err)
	}
	return errors.Join(loadErr, reader.Faults(tracker))
}

// writeLines returns a function that writes lines to w.
func writeLines(w io.Writer) func(string) { return func(line string) { fmt.Fprintln(w, line) } }

const hnsStateText = `Print what the HNS of this Windows node holds, as JSON.

The output is for render --hns-state, on any machine. It has all networks,
endpoints and load balancers, including those of other programs. The command
changes nothing. It needs the rights of an administrator.`

const hnsStateExample = `  kube-proxy hns-state > node-a.json
  kube-proxy render --proxy-mode kernelspace --manifests ./services --hostname-override node-a --hns-state node-a.json`

var errNoHNS = errors.New("hns-state: HNS is a service of Windows: run this on the Windows node it is about")

func newHNSState(to streams, table mode.Table) *cobra.Command {
	return &cobra.Command{
		Use:     "hns-state",
		Short:   "Print what the HNS of this Windows node holds",
		Long:    hnsStateText,
		Example: hnsStateExample,
		Args:    cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			stopNotice := terminal.NoticeIfSlow(to.err, "kube-proxy: still asking HNS ...")
			text, err := hnsDump(table)
			stopNotice()
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(to.out, "%s\n", text); err != nil {
				return fmt.Errorf("print the state: %w", err)
			}
			return nil
		},
	}
}

// hnsDump returns what the HNS of this node holds.
func hnsDump(table mode.Table) ([]byte, error) {
	for _, d := range table {
		if d.System == nil || d.System.Dump == nil {
			continue
		}
		text, err := d.System.Dump()
		if err != nil {
			return nil, fmt.Errorf("hns-state: %w", err)
		}
		return text, nil
	}
	return nil, errNoHNS
}
