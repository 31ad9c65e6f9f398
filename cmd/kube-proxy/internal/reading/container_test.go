// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
)

// TestProxyOfContainer finds the address of the proxy that is process 1, and of no other.
func TestProxyOfContainer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	kit.WriteFile(t, file, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmetricsBindAddress: 127.0.0.1:10349\n")
	for line, want := range map[string]string{
		"/usr/local/bin/kube-proxy --config=" + file + " --hostname-override=a --kube-api-burst=7": "127.0.0.1:10349",
		"kube-proxy --config " + file + " --metrics-bind-address [::]:10449 --v=2":                 "[::]:10449",
		"kube-proxy --later-flag x --config=" + file:                                               "127.0.0.1:10349",
		"kube-proxy":                                   "127.0.0.1:10249",
		"kube-proxy --config=" + file + ".none":        "",
		"kube-proxy status --config=" + file:           "",
		"/usr/lib/systemd/systemd --system":            "",
		"/bin/sh -c kube-proxy --config=" + file:       "",
		"/usr/local/bin/kube-proxy-x --config=" + file: "",
	} {
		proc := fstest.MapFS{"1/cmdline": {Data: []byte(strings.ReplaceAll(line, " ", "\x00") + "\x00")}}
		got := ""
		if args := containerProxy(proc, 20); args != nil {
			if c := configOf(args, modes.All()); c != nil {
				got = c.MetricsBindAddress
			}
		}
		kit.Check(t, got == want, "%s: %q, want %q", line, got, want)
		args := containerProxy(proc, 1)
		kit.Check(t, args == nil, "this process itself: %q", args)
	}
	args := containerProxy(fstest.MapFS{}, 20)
	kit.Check(t, args == nil, "without /proc: %q", args)
}
