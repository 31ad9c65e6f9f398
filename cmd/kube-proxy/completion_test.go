// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/platform/modes"
)

// TestCompletion asks as the scripts of shells do.
func TestCompletion(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"mode":"nftables","health":{"status":{"IPv4":{"healthy":true}}},"services":[{"namespace":"shop","name":"web","state":"programmed","ports":[{"port":"lines","protocol":"TCP","family":"IPv4"},{"port":"lines","protocol":"TCP","family":"IPv6"},{"port":"names","protocol":"UDP","family":"IPv4"}]},{"namespace":"shop","name":"cart","state":"programmed"}]}`))
	}))
	defer proxy.Close()
	server := "--server=" + strings.TrimPrefix(proxy.URL, "http://")
	for _, tt := range []struct{ line, want string }{
		{"--proxy-mode ", "iptables userspace ipvs nftables kernelspace"},
		{"render --proxy-mode ", "iptables userspace ipvs nftables kernelspace"},
		{"render -o ", "text json"},
		{"diff -o ", "plan diff json"},
		{"status -o ", "table wide json"},
		{"service status -o ", "text json"},
		{"doctor -o ", "text json"},
		{"explain -o ", "text json"},
		{"config validate --os ", "linux windows"},
		{"--detect-local-mode ", "ClusterCIDR NodeCIDR BridgeInterface InterfaceNamePrefix"},
		{"status " + server + " ", "shop/web shop/cart"},
		{"explain " + server + " ", "node outside"},
		{"explain " + server + " outside ", "svc/shop/web svc/shop/cart"},
		{"explain " + server + " outside svc/shop/web ", ""},
		{"explain " + server + " outside svc/shop/web:", "svc/shop/web:lines svc/shop/web:names/udp"},
		{"explain " + server + " outside svc/shop/cart:", ""},
		{"status --server=127.0.0.1:1 ", ""},
	} {
		args := strings.Split(tt.line, " ")
		got := call(t, "", append([]string{cobra.ShellCompNoDescRequestCmd}, args...)...)
		values, _, _ := strings.Cut("\n"+got.Out, "\n:") // then a number for the shell
		if got.Code != 0 || strings.Join(strings.Fields(values), " ") != tt.want {
			t.Errorf("%q: exit %d, %q, want %q", tt.line, got.Code, got.Out, tt.want)
		}
	}
}

// TestOutputsAreCompleted checks that no command has formats that shells do not know of.
func TestOutputsAreCompleted(t *testing.T) {
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if _, completed := cmd.GetFlagCompletionFunc(f.Name); f.Name == "output" && !completed {
				t.Errorf("%s: the values of --output are not completed", cmd.CommandPath())
			}
		})
		for _, c := range cmd.Commands() {
			check(c)
		}
	}
	check(newRoot(streams{}, modes.All()))
}
