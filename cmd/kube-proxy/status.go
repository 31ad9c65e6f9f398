// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/platform/mode"
)

const statusText = `Print the state of the proxy that runs on this node.

The command asks the metrics server of the proxy, at the address in --server,
else the one in the file of --config, else, in the container of a proxy, the one
of that proxy, else 127.0.0.1:10249. Without a Service, it prints the state of the
proxy and a list of all Services. With a Service, it prints the state of each of
its ports, and with its port the state of that one. ` + cli.ServiceForms + `

The exit code is 0 if all of this is true: the proxy is healthy, it has read all
its sources at least once, its latest rounds did not fail, nothing keeps traffic
from flowing (such as a kernel that does not forward, or a health check that
cannot be answered), and all selected Services are programmed. It is 1 if not,
2 if the proxy could not be asked, and 3 if it does not know the Service, or no
port of that name. With a Service, it depends only on that Service, and on whether
the kernel forwards its IP families.

A Service without endpoints is programmed: connections to it are refused, as they
should be; in mode kernelspace they time out. A Service that asks for what the
mode cannot do is limited: the rest of it is in force.

With --watch, each change is printed with its time: of the proxy, its rounds, its
Services and, with a Service, its endpoints. An interrupt ends it: exit code 0.
With -o json, each state that differs is printed in full, and a proxy that stops
answering as an object with the field error.
If there is no first answer, the exit code is the same as without --watch.

With --wait the command asks until the condition is true, and exits with 0 then.
If --timeout is over before, it prints the last answer, and the exit code is that
of the answer, at least 1.

` + cli.DataText

const statusExample = `  kube-proxy status
  kube-proxy status --failing --sort state
  kube-proxy status -l app=web -o name
  kube-proxy status shop/web --wait --timeout 2m
  kube-proxy status shop/web
  kube-proxy status svc/web:http -n shop --watch
  kube-proxy status -o json | jq '.services[] | select(.state != "programmed")'`

// The exit codes of status, and of service status.
const (
	exitNotOK       = statusview.ExitNotOK
	exitUnreachable = statusview.ExitUnreachable
)

func newStatus(to streams, table mode.Table) *cobra.Command {
	status := &reading.Status{Server: reading.Server{Modes: table}}
	cmd := &cobra.Command{
		Use:     "status [SERVICE] [flags]",
		Short:   "Print the state of the running proxy",
		Long:    statusText,
		Example: statusExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := selectService(&status.Query, cmd, args); err != nil {
				return err
			}
			status.Query.Version = buildInfo().Version
			code, err := status.Run(cmd.Context(), to.out, to.err)
			if code == 0 && err == nil {
				return nil
			}
			return &exit{code, err}
		},
	}
	status.Register(cmd.Flags())
	return failsWith(exitUnreachable, cmd)
}

// selectService parses the argument of a command that asks for all Services or one.
func selectService(q *statusview.Query, cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("%s wants one Service, not %d", cli.Path(cmd), len(args))
	}
	if len(args) == 0 {
		return nil
	}
	var err error
	q.Reference, err = service.ParseReference(args[0], q.Namespace)
	return err
}

const topText = `Print which Services of this node carry most traffic.

The command asks the running proxy twice. The difference gives the rates.
Connections are counted when they begin. Modes ipvs and userspace also count
bytes. Mode ipvs also counts packets, which only -o json shows. With a Service,
each of its endpoints is shown. ` + cli.ServiceForms + `

The proxy counts if it runs with --count-traffic, or with countTraffic: true in
its configuration. The exit code is 0, also after an interrupt of --watch. It is
2 if the proxy could not be asked or does not count, and 3 if it does not know the
Service.`

const topExample = `  kube-proxy top
  kube-proxy top shop/web --watch
  kube-proxy top --sort bytes --interval 10s
  kube-proxy top -o json --interval 0 | jq '.services[] | select(.connections > 1000)'`

func newTop(to streams, table mode.Table) *cobra.Command {
	top := &reading.Top{Server: reading.Server{Modes: table}}
	cmd := &cobra.Command{
		Use:     "top [SERVICE] [flags]",
		Short:   "Print which Services carry most traffic",
		Long:    topText,
		Example: topExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := selectService(&top.Query.Query, cmd, args); err != nil {
				return err
			}
			top.Query.Version = buildInfo().Version
			err := top.Run(cmd.Context(), to.out, to.err)
			if _, unknown := errors.AsType[*statusview.UnknownError](err); unknown {
				return &exit{statusview.ExitUnknown, err}
			}
			return err
		},
	}
	top.Register(cmd.Flags())
	return failsWith(exitUnreachable, cmd)
}
