// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ask has the code that commands share to ask a running proxy: where it is, and
// how answers are written to a terminal. Packages such as statusview and trafficview
// decide what is asked, and how it is printed.
package ask

import (
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/statusview"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// ServerHelp is the help of --server of every command that asks the running proxy.
const ServerHelp = "`HOST[:PORT]` of the metrics server of the running proxy; overrides --config"

// Server is the address of the proxy, and the time it may take to answer.
type Server struct {
	// Config is a configuration file with the address. Addr overrides it.
	Config, Addr string
	Timeout      time.Duration
	Modes        mode.Table
}

// Register registers the flags of s.
func (s *Server) Register(fs *pflag.FlagSet) {
	fs.StringVar(&s.Config, "config", "", "take the address from metricsBindAddress in this configuration `FILE`")
	fs.StringVar(&s.Addr, "server", "", ServerHelp)
	fs.StringVar(&s.Addr, "metrics-bind-address", "", "`HOST[:PORT]`, the same as --server")
	fs.DurationVar(&s.Timeout, "timeout", 10*time.Second, "how much `TIME` the running proxy has to answer")
}

// Address returns the address of the metrics server, as host:port. Without flags it is that of
// the proxy in whose container this process runs, or else the default.
func (s *Server) Address() (string, error) {
	if s.Addr != "" {
		return statusview.DialAddress(s.Addr)
	}
	from := s.Config
	var c *config.Config
	if from != "" {
		var err error
		if c, err = config.Load(&config.Flags{Modes: s.Modes.Config(), Config: from}, host.OS); err != nil {
			return "", err
		}
	} else if c, from = proxyHere(s.Modes), "the configuration of process 1"; c == nil {
		return statusview.DefaultServer, nil
	}
	if _, port, _ := net.SplitHostPort(c.MetricsBindAddress); port == "0" {
		return "", fmt.Errorf("%s: metricsBindAddress has port 0, so the proxy serves no metrics and cannot be asked", from)
	}
	return statusview.DialAddress(c.MetricsBindAddress)
}
