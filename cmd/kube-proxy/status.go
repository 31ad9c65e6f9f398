// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubeproxy/config"
)

const statusText = `Ask the proxy that runs on this node how it goes.

It is asked at the address of its metrics server: the one of --server, else the
one in the file of --config, else 127.0.0.1:10249. Without a Service, the answer
is about the proxy and lists all Services; with one, about each of its ports. A
NAME alone finds Services of that name in every namespace.

The exit code is 0 if the proxy is healthy, its latest look at the node did not
fail, nothing keeps traffic from flowing, such as a kernel that does not forward or
a health check that cannot be answered, and everything asked about is programmed,
1 if not, and 2 if it could not be
asked. With a Service, it is about that one
alone, and about whether the kernel forwards its IP families. A Service without endpoints is programmed: connections to
it are refused, as they should be. One that asks for what the mode cannot do is
limited: the rest of it is in force.`

const statusExample = `  kube-proxy status
  kube-proxy status --failing
  kube-proxy status shop/web
  kube-proxy status -o json | jq '.services[] | select(.state != "programmed")'`

// The exit codes of status.
const (
	exitNotOK       = 1
	exitUnreachable = 2
)

// exit ends the command with a code. Its error is nil if nothing is left to print.
type exit struct {
	code int
	err  error
}

func (e *exit) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *exit) Unwrap() error { return e.err }

// statusOptions are the flags and arguments of status.
type statusOptions struct {
	config, server, namespace, format string
	failing                           bool
	timeout                           time.Duration

	name string // of the Service, empty for all
	now  func() time.Time
}

// The formats of status.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
)

func newStatus(to streams) *cobra.Command { return statusCommand(&statusOptions{now: time.Now}, to) }

func statusCommand(q *statusOptions, to streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status [NAMESPACE/NAME | NAME] [flags]",
		Short:   "Ask the running proxy how it goes",
		Long:    statusText,
		Example: statusExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := q.parseService(cmd, args)
			if err == nil {
				err = q.run(cmd.Context(), to)
			}
			if _, coded := errors.AsType[*exit](err); err == nil || coded {
				return err
			}
			return &exit{exitUnreachable, err}
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &exit{exitUnreachable, flagError(cmd, err)} })
	fs := cmd.Flags()
	fs.StringVar(&q.config, "config", "", "take the address from metricsBindAddress in this configuration `FILE`")
	fs.StringVar(&q.server, "server", "", "`HOST[:PORT]` of the proxy's metrics server; goes before --config")
	fs.StringVar(&q.server, "metrics-bind-address", "", "`HOST[:PORT]`, the same as --server")
	fs.StringVarP(&q.namespace, "namespace", "n", "", "only Services of this `NAMESPACE`")
	fs.StringVarP(&q.format, "output", "o", formatTable, "`FORMAT` of what is printed: table, wide or json")
	fs.BoolVar(&q.failing, "failing", false, "list only Services that are not programmed in full, have a port that serves no client or a health check that is not answered")
	fs.DurationVar(&q.timeout, "timeout", 10*time.Second, "how much `TIME` the proxy has to answer")
	return cmd
}

// parseService parses the argument.
func (q *statusOptions) parseService(cmd *cobra.Command, args []string) error {
	if q.format != formatTable && q.format != formatWide && q.format != formatJSON {
		return fmt.Errorf("--output: %q is unknown: want %s, %s or %s", q.format, formatTable, formatWide, formatJSON)
	}
	if len(args) > 1 {
		return fmt.Errorf("%s wants one Service, not %d", commandPath(cmd), len(args))
	}
	if len(args) == 0 {
		return nil
	}
	namespace, name, both := strings.Cut(args[0], "/")
	if !both {
		namespace, name = q.namespace, args[0]
	}
	if name == "" || both && namespace == "" || strings.Contains(name, "/") {
		return fmt.Errorf("service %q: want NAMESPACE/NAME or NAME", args[0])
	}
	if q.namespace != "" && q.namespace != namespace {
		return fmt.Errorf("service %q is not in the namespace of --namespace, %q", args[0], q.namespace)
	}
	q.namespace, q.name = namespace, name
	return nil
}

func (q *statusOptions) run(ctx context.Context, to streams) error {
	server, err := q.address()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	stopNotice := noticeIfSlow(to.err, "kube-proxy: still asking "+server+" ...")
	d, err := fetchStatus(ctx, server, q)
	stopNotice()
	if err != nil {
		return err
	}
	if err := q.print(to.out, d); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	if !d.OK {
		return &exit{code: exitNotOK}
	}
	return nil
}

func (q *statusOptions) print(w io.Writer, d *statusOutput) error {
	if q.format == formatJSON {
		return d.printJSON(w)
	}
	p := &printer{colour: coloured(w), wide: q.format == formatWide, now: q.now()}
	if q.name == "" {
		p.overview(d)
	} else {
		p.services(d)
	}
	_, err := w.Write(p.text.Bytes())
	return err
}

const defaultServer = "127.0.0.1:10249"

// address returns the server address, as host:port.
func (q *statusOptions) address() (string, error) {
	switch {
	case q.server != "":
		return dialAddress(q.server)
	case q.config == "":
		return defaultServer, nil
	}
	c, err := config.Load(&config.Flags{Config: q.config}, hostOS)
	if err != nil {
		return "", err
	}
	if _, port, _ := net.SplitHostPort(c.MetricsBindAddress); port == "0" {
		return "", fmt.Errorf("%s: metricsBindAddress has port 0, so the proxy serves no metrics and cannot be asked", q.config)
	}
	return dialAddress(c.MetricsBindAddress)
}

// dialAddress completes an address, and converts a listen address to one to connect to.
func dialAddress(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		_, port, _ = net.SplitHostPort(defaultServer)
		host = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	}
	_, badPort := strconv.ParseUint(port, 10, 16)
	if _, err := netip.ParseAddr(host); badPort != nil || port == "0" || err != nil && strings.ContainsAny(host, ":/[]") {
		return "", fmt.Errorf("--server: %q is no address: want HOST or HOST:PORT, such as 127.0.0.1:10249 or [::1]:10249", s)
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case host == "" || err == nil && addr == netip.IPv4Unspecified():
		host = "127.0.0.1"
	case err == nil && addr == netip.IPv6Unspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}
