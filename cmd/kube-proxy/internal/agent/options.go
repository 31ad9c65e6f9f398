// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/host"
	filewatch "kubeproxy/common/files"
	"kubeproxy/common/lease"
	"kubeproxy/common/logging"
	"kubeproxy/common/metrics"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Options are the values of the command line.
type Options struct {
	Modes     mode.Table // that exist
	Flags     config.Flags
	Manifests []string
	Fallback  bool           // see --proxy-mode-fallback
	Exposed   bool           // see --expose-admin-pages
	CertFile  string         // see --tls-cert-file
	KeyFile   string         // see --tls-private-key-file
	FlagSet   *pflag.FlagSet // all of the above

	loadedKey string // the key of the configuration file's content
}

// NewOptions returns Options for the modes of t.
func NewOptions(t mode.Table) *Options {
	return &Options{Modes: t, Flags: config.Flags{Modes: t.Config()}}
}

// Load reads the configuration for os.
func (o *Options) Load(os config.OS) (*config.Config, error) {
	file := filewatch.NewContent(o.Flags.ReadFile())
	if file.Err != nil {
		return nil, file.Err
	}
	o.loadedKey = file.Key
	return config.LoadFrom(&o.Flags, os, file.Data)
}

// Process is what the proxy gets from the process that it runs in.
type Process struct {
	Build metrics.Build
	Logs  *logging.Log
	// Started, if set, is called when the proxy runs.
	Started func()
	// StopBegan returns when the stop that ended ctx began.
	StopBegan func(ctx context.Context) time.Time
}

// System is what the proxy needs of the system that it runs on, see package host.
type System struct {
	OS config.OS
	// LeaseTransport returns the transport by which service proxies of a node find each
	// other, nil if there is none, and the identity of this one.
	LeaseTransport func(proxyName string) (lease.Transport, lease.Identity)
	// Processes names the processes that look like service proxies of this node.
	Processes func() string
	// KeepPrepared applies the system settings until ctx ends.
	KeepPrepared func(ctx context.Context, p host.Preparation)
	// Tracked counts the entries of connection tracking, nil if they are unknown.
	Tracked func() *metrics.Tracked
}

// ThisSystem returns the system that this program runs on.
func ThisSystem() System {
	return System{
		OS: host.OS, LeaseTransport: host.LeaseTransport, Processes: host.Processes, KeepPrepared: host.KeepPrepared, Tracked: host.Tracked,
	}
}
