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

// Address returns the address of the metrics server, as host:port.
func (s *Server) Address() (string, error) {
	switch {
	case s.Addr != "":
		return statusview.DialAddress(s.Addr)
	case s.Config == "":
		return statusview.DefaultServer, nil
	}
	c, err := config.Load(&config.Flags{Modes: s.Modes.Config(), Config: s.Config}, host.OS)
	if err != nil {
		return "", err
	}
	if _, port, _ := net.SplitHostPort(c.MetricsBindAddress); port == "0" {
		return "", fmt.Errorf("%s: metricsBindAddress has port 0, so the proxy serves no metrics and cannot be asked", s.Config)
	}
	return statusview.DialAddress(c.MetricsBindAddress)
}
