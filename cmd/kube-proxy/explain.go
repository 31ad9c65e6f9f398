// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/cmd/kube-proxy/internal/examine"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/document"
	"kubeproxy/common/explain"
	"kubeproxy/common/printable"
	"kubeproxy/common/source"
	"kubeproxy/common/terminal"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

const explainText = `Say what happens to a connection on a node, and why.

SOURCE is an address, pod/NAMESPACE/NAME, node for the node itself, or outside for
any client outside of the cluster. DESTINATION is ADDRESS:PORT, node:PORT for a
NodePort, or a Service: web, shop/web, svc/web or svc/shop/web, for one port with
:http, :80 or :53/udp. The protocol is TCP, unless the destination ends in /udp or
/sctp. A Service is dialled at its ClusterIP, from outside at an external address
or NodePort if it has one.

The answer names the Service that has the destination, other Services that claim
it, each rule of Kubernetes that applies, and for each endpoint whether it gets
the connection and why.

The proxy that runs on this node is asked, at the address that kube-proxy status
asks. It reads what is installed and says where that differs from what should
happen: objects of kube-proxy that are missing or altered, rules of others that
decide, entries of connection tracking that lead elsewhere. On Linux it follows
the first packet and its answer through the chains of others too, asks the kernel
for the route of both, with source, mark and interface, and looks at the
interface, the neighbour and the listener that take the packet. What cannot be
evaluated, such as a limit or a chain of a bridge, is named; BPF is not read. The
exit code is 0 if both agree, 1 if they differ, and 2 if that is unknown.

With --without-proxy the command reads the node itself, with the rights of the
proxy; so it does if nobody answers and --kubeconfig or the last run gives the
Services. Settings that no flag gives are those of the last run. With --manifests
alone, any user can ask on any system: all that is known of the node is its Node
manifest, and the exit code is 0 if there is an answer, else 2. Pods that are no
endpoints are looked up at the API server, unless --pod-address has their address.

--probe dials up to 16 endpoints, then the destination, by one packet each: from
here, and from a pod whose network can be entered. The exit code is 1 if something
fails.`

const explainExample = `  kube-proxy explain --manifests ./services --hostname-override node-a 10.244.1.7 10.96.0.10:80
  kube-proxy explain 10.244.1.7 web:http -n shop --probe
  kube-proxy explain --without-proxy --kubeconfig /etc/kubernetes/kube-proxy.conf 10.244.1.7 10.96.0.10:80`

// The format for people, and the exit codes of explain besides 0.
const (
	asText      = "text"
	exitDiffers = 1
	exitUnknown = 2
)

// explainOptions are the flags and arguments of explain.
type explainOptions struct {
	options
	query      explain.Query
	alone      bool // without a proxy
	format     string
	all, probe bool
	assign     []string

	server     string
	timeout    time.Duration
	kubeconfig string // that a flag names
	podAddrs   []net.IP
	podNode    string
	namespace  string
}

func newExplain(to streams, table mode.Table) *cobra.Command {
	x := &explainOptions{options: *newOptions(table)}
	cmd := &cobra.Command{
		Use:     "explain SOURCE DESTINATION [flags]",
		Short:   "Say what happens to a connection, and why",
		Long:    explainText,
		Example: explainExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			x.kubeconfig = cmd.Flags().Lookup("kubeconfig").Value.String()
			return x.run(cmd.Context(), to, args)
		},
	}
	x.registerReading(cmd.Flags())
	registerAssign(cmd.Flags(), &x.assign)
	cmd.Flags().StringVarP(&x.format, "output", "o", asText, "`FORMAT` of what is printed: text, "+document.DataForms)
	cmd.Flags().StringVar(&x.query.Interface, "interface", "", "the interface `NAME` through which the packets enter the node")
	cmd.Flags().BoolVar(&x.alone, "without-proxy", false, "read what this node has installed without a proxy, as beside a dead one")
	cmd.Flags().StringVar(&x.server, "server", "", reading.ServerHelp)
	cli.Timeout(cmd.Flags(), &x.timeout, 30*time.Second, "how much `TIME` the running proxy has to answer")
	cmd.Flags().IPSliceVar(&x.podAddrs, "pod-address", nil, "`ADDRESS` of the pod in SOURCE, one of each family, if the proxy does not know that pod")
	cmd.Flags().StringVar(&x.podNode, "pod-node", "", "the `NODE` of that pod")
	cmd.Flags().StringVarP(&x.namespace, "namespace", "n", "", "look into this `NAMESPACE` alone")
	cmd.Flags().BoolVar(&x.probe, "probe", false, "really dial the endpoints, and then the destination")
	cmd.Flags().BoolVar(&x.all, "all", false, "print all of a long list, not only its beginning")
	return failsWith(exitUnknown, cmd)
}

func (e *explainOptions) run(ctx context.Context, to streams, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("explain wants SOURCE and DESTINATION, not %d of them, such as: kube-proxy explain --manifests ./services 10.244.1.7 svc/shop/web:http", len(args))
	}
	if err := document.CheckOutput(e.format, asText); err != nil {
		return err
	}
	if len(e.Manifests) > 0 && len(e.podAddrs) > 0 {
		return errors.New("--pod-address is for the proxy that runs: want it without --manifests, which have the pod")
	}
	e.query.Source, e.query.Destination = args[0], args[1]
	if err := e.query.InNamespace(e.namespace); err != nil {
		return err
	}
	if e.alone {
		return e.readNode(ctx, to)
	}
	if len(e.Manifests) == 0 {
		return e.askProxy(ctx, to)
	}
	c, err := config.Load(&e.Flags, e.systemOfMode())
	if err != nil {
		return err
	}
	node, err := agent.NodeName(c)
	if err != nil {
		return err
	}
	defer terminal.NoticeIfSlow(os.Stderr, "kube-proxy: still reading the manifests ...")()
	model, err := e.read(ctx, c, node, to)
	if err != nil {
		return err
	}
	answer, err := examine.Answer(model, e.query, c, e.Modes.Of(c))
	if err != nil {
		return err
	}
	return e.show(ctx, to, answer)
}

// show dials if that is asked for, and prints the answer.
func (e *explainOptions) show(ctx context.Context, to streams, answer *explain.Explanation) (err error) {
	if e.probe {
		err = host.Probe(ctx, answer)
	}
	switch {
	case err != nil:
	case e.format != asText:
		err = document.WriteData(to.out, e.format, answer)
	default:
		err = explain.View{All: e.all, Width: terminal.Columns(to.out)}.Print(to.out, answer)
	}
	if err == nil && answer.Probe.Fails() {
		return &exit{code: exitDiffers}
	}
	return err
}

// askProxy asks the running proxy.
func (e *explainOptions) askProxy(ctx context.Context, to streams) error {
	server, err := (&reading.Server{Config: e.Flags.Config, Addr: e.server, Modes: e.Modes}).Address()
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	stopNotice := terminal.NoticeIfSlow(to.err, "kube-proxy: still asking "+server+" ...")
	client := reading.Client{Server: server, Version: buildInfo().Version, Kubeconfig: e.kubeconfig, PodNode: e.podNode, Probes: e.probe}
	for _, ip := range e.podAddrs {
		if addr, ok := netip.AddrFromSlice(ip); ok {
			client.PodAddresses = append(client.PodAddresses, addr.Unmap())
		}
	}
	answer, err := client.Explain(asking, e.query)
	stopNotice()
	if _, silent := errors.AsType[*reading.SilentError](err); silent && e.server == "" && (e.kubeconfig != "" || e.KnowsManifests()) {
		return e.readNode(ctx, to)
	} else if silent {
		return fmt.Errorf("%w; on the node, --without-proxy reads what is installed without a proxy, with Services from --kubeconfig or --manifests", err)
	}
	if err != nil {
		return err
	}
	return e.conclude(ctx, to, answer)
}

// readNode reads what this node has installed, without a proxy.
func (e *explainOptions) readNode(ctx context.Context, to streams) error {
	ranges, err := reading.Ranges(e.assign)
	if err != nil {
		return err
	}
	x := examine.Diff{Proxy: &e.Options, Version: buildInfo().Version, Server: e.server, Timeout: e.timeout, Report: writeLines(to.err), Assign: ranges}
	answer, err := x.Explain(ctx, e.query)
	if err != nil {
		return err
	}
	return e.conclude(ctx, to, answer)
}

// conclude prints the answer of a node, and returns the exit code of its verdict.
func (e *explainOptions) conclude(ctx context.Context, to streams, answer *explain.Explanation) error {
	if err := e.show(ctx, to, answer); err != nil {
		return err
	}
	switch answer.Verdict {
	case explain.Agree:
		return nil
	case explain.Differ:
		return &exit{code: exitDiffers}
	}
	return &exit{code: exitUnknown}
}

// read reads the manifests. Objects that cannot be used are reported, and the others
// count.
func (e *explainOptions) read(ctx context.Context, c *config.Config, node string, to streams) (explain.Model, error) {
	ranges, err := reading.Ranges(e.assign)
	if err != nil {
		return explain.Model{}, err
	}
	var pods *explain.Pods
	r := reading.Reader{
		Assign: ranges,
		Config: c, Mode: e.Modes.Of(c), Node: node, Report: writeLines(to.err),
		Wrap: func(t *track.Tracker) source.Sink {
			pods = explain.NewPods(t)
			return pods
		},
	}
	tracker, loadErr := r.Manifests(ctx, e.Manifests)
	m := explain.Model{Tracker: tracker, Snapshot: tracker.Latest(), Relays: e.Modes.Of(c).Relays}
	if m.Snapshot == nil {
		return m, loadErr
	}
	if loadErr != nil {
		fmt.Fprintf(to.err, "warning: %s\n", printable.Error(loadErr))
	}
	e.query.Pod = pods.Find
	return m, nil
}
