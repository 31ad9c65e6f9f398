// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/printable"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/platform/windows/hns"
)

const renderText = `Print what a node would install, without touching anything.

Any user can do this on any system. The same manifests and flags give the same
text. Nothing is known of the node but what its Node manifest says. What is
wrong with the manifests goes to standard error; the rest is printed all the
same, and the exit code is 1 if a file or an object could not be used.

What a Windows node would hold is printed with --proxy-mode kernelspace. With
--hns-state and what its HNS holds, it also says what would change; without,
the network is assumed to be an l2bridge, or an overlay if a source VIP is set.`

// renderOptions are the flags and arguments of render.
type renderOptions struct {
	options
	format   string
	hnsState string
}

func newRender(to streams) *cobra.Command {
	r := &renderOptions{}
	cmd := &cobra.Command{
		Use:     "render --manifests PATH [flags]",
		Short:   "Print what a node would install",
		Long:    renderText,
		Example: "  kube-proxy render --manifests ./services --hostname-override node-a -o text",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return r.run(cmd.Context(), to) },
	}
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	r.register(all)
	all.VisitAll(func(f *pflag.Flag) {
		switch f.Name {
		case "cleanup", "cleanup-iptables", "cleanup-ipvs", "init-only", "write-config-to", "version":
		default:
			cmd.Flags().AddFlag(f)
		}
	})
	cmd.Flags().StringVarP(&r.format, "output", "o", string(nftables.Text), "`FORMAT` of what is printed: text, as nft -f, iptables-restore, or ipvsadm -R and ipset restore take it, or json")
	cmd.Flags().StringVar(&r.hnsState, "hns-state", "", "`FILE` with what the HNS of a Windows node holds, in JSON")
	return cmd
}

func (r *renderOptions) run(ctx context.Context, to streams) error {
	if r.format != string(nftables.Text) && r.format != string(nftables.JSON) {
		return fmt.Errorf("--output: %q is unknown: want %s or %s", r.format, nftables.Text, nftables.JSON)
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
	if err := checkMode(c); err != nil {
		return err
	}
	node, err := agent.NodeName(c)
	if err != nil {
		return err
	}
	defer noticeIfSlow(os.Stderr, "kube-proxy: still reading the manifests ...")()
	return render(ctx, c, r, node, to)
}

// system returns the operating system of the rendered node.
func (r *renderOptions) system() config.OS {
	if r.hnsState != "" || r.FlagSet.Lookup("proxy-mode").Value.String() == string(config.Kernelspace) {
		return config.Windows
	}
	return config.Linux
}

func render(ctx context.Context, c *config.Config, r *renderOptions, node string, to streams) error {
	to.out = printable.Writer(to.out)
	tracker := track.New(agent.TrackOptions(c, node))
	tracker.Subscribe(track.Listener{Found: func(all []track.Problem) { printProblems(to.err, all) }})
	files := source.Manifests{
		Paths:    r.Manifests,
		NodeName: node,
		Note:     func(s string) { fmt.Fprintf(to.err, "note: %s\n", printable.Text(s)) },
	}
	loadErr := files.Load(ctx, tracker)
	want := tracker.Latest()
	if want == nil {
		return loadErr
	}
	for _, f := range service.Families {
		if text := report.ClosedNodePorts(want, f); text != "" && c.OS != config.Windows {
			fmt.Fprintf(to.err, "note: %s\n", text)
		}
	}
	if c.OS == config.Windows {
		if err := r.renderHNS(c, want, to); err != nil {
			return err
		}
		return loadErr
	}
	for _, line := range localhostListeners(c, want) {
		fmt.Fprintf(to.err, "note: %s\n", line)
	}
	if modeOf(c) == config.Userspace {
		if c.PortRange == "" {
			fmt.Fprintf(to.err, "note: the system chooses where listeners are; here they are taken to be at %d and up\n", userspace.AssumedPorts.First)
		}
		if err := userspace.Render(to.out, want, userspaceOptions(c), iptables.Format(r.format)); err != nil {
			return fmt.Errorf("render: %w", err)
		}
		return loadErr
	}
	if modeOf(c) == config.IPVS {
		if err := ipvs.Render(to.out, want, ipvsOptions(c), ipvs.Format(r.format)); err != nil {
			return fmt.Errorf("render: %w", err)
		}
		return loadErr
	}
	if modeOf(c) == config.IPTables {
		if err := iptables.Render(to.out, want, iptablesOptions(c), iptables.Format(r.format)); err != nil {
			return fmt.Errorf("render: %w", err)
		}
		return loadErr
	}
	if err := nftables.Render(to.out, want, nftablesOptions(c), nftables.Format(r.format)); err != nil {
		return fmt.Errorf("render: %w", err)
	}
	return loadErr
}

// mostProblems is how many problems that come up at once are printed. The rest is
// counted.
const mostProblems = 20

func printProblems(to io.Writer, all []track.Problem) {
	for _, p := range all[:min(len(all), mostProblems)] {
		fmt.Fprintf(to, "problem: %s\n", p)
	}
	if n := len(all) - mostProblems; n > 0 {
		fmt.Fprintf(to, "problem: and %d more problems\n", n)
	}
}

// renderHNS prints what a Windows node would hold, and what would change if it
// is known what its HNS holds.
func (r *renderOptions) renderHNS(c *config.Config, want *service.Snapshot, to streams) error {
	o := hnsOptions(c)
	if r.hnsState == "" {
		kind := hns.L2Bridge
		if o.SourceVIP.IsValid() {
			kind = hns.Overlay
		}
		o.NetworkName, o.EnvName = "", ""
		fmt.Fprintf(to.err, "note: nothing is known of the node's HNS, so the network is assumed to be of type %s; --hns-state FILE tells\n", kind)
		return hns.Render(to.out, want, hns.AssumedListing(kind, want, o), o, hns.Format(r.format))
	}
	text, err := os.ReadFile(r.hnsState)
	if err != nil {
		return fmt.Errorf("--hns-state: %w", err)
	}
	l, err := hns.ReadState(text)
	if err != nil {
		return fmt.Errorf("--hns-state: %s: %w", r.hnsState, err)
	}
	return hns.Render(to.out, want, l, o, hns.Format(r.format))
}
