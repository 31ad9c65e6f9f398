// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/completion"
	"kubeproxy/cmd/kube-proxy/internal/help"
	"kubeproxy/cmd/kube-proxy/internal/usage"
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
		Args:          usage.NoArgs,
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
	root.SetFlagErrorFunc(usage.FlagError)
	o.register(root.Flags())
	root.AddCommand(newRender(to, table), newExplain(to, table), newDiff(to, table), newConfig(to, table), newServiceCommand(to, table),
		newStatus(to, table), newTop(to, table), newDoctor(to, table), newSupportDump(to, table), newHNSState(to, table), newVersion(to))
	usage.CheckGenerated(root)
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
	fs.SortFlags = false
}

// usualSettings are those that the help of every command lists which takes settings.
var usualSettings = []string{"config", "manifests", "kubeconfig", "hostname-override", "proxy-mode", "cluster-cidr"}

// registerReading registers the flags for a command that changes nothing: all but those
// that select an action of the proxy.
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

// listOnly makes help list the named flags of fs, and refer to kube-proxy --help for the
// others.
func listOnly(fs *pflag.FlagSet, names ...string) {
	fs.VisitAll(func(f *pflag.Flag) {
		if slices.Contains(names, f.Name) {
			return
		}
		if f.Annotations == nil {
			f.Annotations = map[string][]string{}
		}
		f.Annotations[help.SettingAnnotation] = []string{"true"}
	})
}
