// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/platform/mode"
)

const topText = `Print which Services of this node carry most traffic.

The command asks the running proxy twice. The difference gives the rates.
Connections are counted when they begin. Modes ipvs and userspace also count
bytes. Mode ipvs also counts packets, which only -o json shows. With a Service,
each of its endpoints is shown.

The proxy counts if it runs with --count-traffic, or with countTraffic: true in
its configuration. The exit code is 0, also after an interrupt of --watch. It is
2 if the proxy could not be asked or does not count.`

const topExample = `  kube-proxy top
  kube-proxy top shop/web --watch
  kube-proxy top --sort bytes --interval 10s
  kube-proxy top -o json --interval 0 | jq '.services[] | select(.connections > 1000)'`

func newTop(to streams, table mode.Table) *cobra.Command {
	top := &reading.Top{Server: reading.Server{Modes: table}}
	cmd := &cobra.Command{
		Use:     "top [NAMESPACE/NAME | NAME] [flags]",
		Short:   "Print which Services carry most traffic",
		Long:    topText,
		Example: topExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := selectService(&top.Query.Query, cmd, args); err != nil {
				return err
			}
			top.Query.Version = buildInfo().Version
			return top.Run(cmd.Context(), to.out, to.err)
		},
	}
	top.Register(cmd.Flags())
	return failsWith(exitUnreachable, cmd)
}
