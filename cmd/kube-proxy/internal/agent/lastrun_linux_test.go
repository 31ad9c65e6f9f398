// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"kubeproxy/config"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
)

// TestLastRun checks what a command gets of a proxy that ran: the mode that it selected, whole paths
// and the settings that no flag of the command gives, but no kubeconfig.
func TestLastRun(t *testing.T) {
	options := func(args ...string) (*Options, *config.Config) {
		t.Helper()
		o := NewOptions(modes.All())
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.Flags.Register(fs)
		kit.Must(t, fs.Parse(args))
		c, err := config.Load(&o.Flags, config.Linux)
		kit.Must(t, err)
		return o, c
	}
	o, c := options("--cluster-cidr=10.244.0.0/16", "--kubeconfig=conf", "--silent-endpoints=observe", "--hostname-override=node-a")
	o.Manifests = []string{"services"}
	p := newTestProxy(o, c, klog.Logger{})
	var text []byte
	p.system.KeepSettings = func(_ context.Context, _ *config.Config, all []byte) error {
		text = all
		return nil
	}
	p.keepSettings(t.Context())

	o, c = options("--hostname-override=node-b")
	with, now, err := o.resumeFrom(text, c)
	kit.Must(t, err)
	whole, err := filepath.Abs("services")
	kit.Must(t, err)
	if now.Mode != config.NFTables || now.ClusterCIDR != "10.244.0.0/16" || now.HostnameOverride != "node-b" || now.SilentEndpoints != config.SilentObserved ||
		now.ClientConnection.Kubeconfig != "" || !slices.Equal(with.Manifests, []string{whole}) {
		t.Errorf("resumed %+v, manifests %q", now, with.Manifests)
	}
	for _, args := range [][]string{{"--kubeconfig=other"}, {}} {
		o, c = options(args...)
		if o.Manifests = nil; len(args) == 0 {
			o.Manifests = []string{"other"}
		}
		with, _, err := o.resumeFrom(text, c)
		kit.Check(t, err == nil && !slices.Contains(with.Manifests, whole), "with a source of its own: %q, %v", with.Manifests, err)
	}
	forged := bytes.ReplaceAll(text, []byte(`kubeconfig: \"\"`), []byte(`kubeconfig: /tmp/mine`))
	if _, now, err := o.resumeFrom(forged, c); err != nil || bytes.Equal(forged, text) || now.ClientConnection.Kubeconfig != "" {
		t.Errorf("a kubeconfig of others counts: %v, %s", err, text)
	}
	_, _, err = o.resumeFrom([]byte("{"), c)
	kit.Check(t, err != nil, "a text that is cut is no error")
}
