// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/config"
	"kubeproxy/platform/modes"
)

// lastRun is what a proxy leaves for commands beside a dead one. It does not name the API server,
// and nobody reads that from it: a kubeconfig may have a command to run, and a container with
// CAP_NET_ADMIN on the network of the node may write here.
type lastRun struct {
	Config    string   // as a file
	Manifests []string `json:",omitempty"`
}

// keepSettingsOnce is keepSettings, once while this process programs the node.
func (p *proxy) keepSettingsOnce(ctx context.Context) {
	if p.settingsKept.CompareAndSwap(false, true) {
		p.keepSettings(ctx)
	}
}

// keepSettings leaves the settings in force. It is called by the proxy that programs the node.
func (p *proxy) keepSettings(ctx context.Context) {
	c := *p.active.config()
	c.Mode = cmp.Or(c.Mode, p.selected.Name)
	c.ClientConnection.Kubeconfig = ""
	var r lastRun
	for _, path := range p.options.Manifests {
		if whole, err := filepath.Abs(path); err == nil {
			r.Manifests = append(r.Manifests, whole)
		}
	}
	var file bytes.Buffer
	err := c.Write(&file)
	if r.Config = file.String(); err == nil {
		var text []byte
		if text, err = json.Marshal(r); err == nil {
			err = p.system.KeepSettings(context.WithoutCancel(ctx), &c, text)
		}
	}
	if err != nil {
		p.log.V(2).Info("Commands beside a dead proxy will not know its settings", "reason", err.Error())
	}
}

// KnowsManifests reports whether the proxy that programmed this node last had manifests.
func (o *Options) KnowsManifests() bool {
	var last lastRun
	text, err := modes.LastSettings(&config.Config{ProxyName: o.Flags.ProxyName})
	return err == nil && json.Unmarshal(text, &last) == nil && len(last.Manifests) > 0
}

// lastRunName stands for the file that Resume reads.
const lastRunName = "the settings of the last run"

// Resume returns the options and the configuration of the proxy that programmed this node last, with
// the flags that o has, nil if none is known.
func (o *Options) Resume(c *config.Config) (*Options, *config.Config, error) {
	text, err := modes.LastSettings(c)
	if text == nil || err != nil {
		return nil, nil, err
	}
	return o.resumeFrom(text, c)
}

func (o *Options) resumeFrom(text []byte, c *config.Config) (*Options, *config.Config, error) {
	var last lastRun
	if err := json.Unmarshal(text, &last); err != nil {
		return nil, nil, err
	}
	with := *o
	with.Flags.Config = lastRunName
	if len(with.Manifests) == 0 && c.ClientConnection.Kubeconfig == "" {
		with.Manifests = last.Manifests
	}
	now, err := config.LoadFrom(&with.Flags, host.OS, []byte(last.Config))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", lastRunName, err)
	}
	with.Flags.Config, now.ClientConnection = "", c.ClientConnection
	return &with, now, nil
}
