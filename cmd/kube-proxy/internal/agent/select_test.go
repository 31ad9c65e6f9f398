// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
)

// selectCase is a case of TestSelectMode.
type selectCase struct {
	args      []string
	file      v1alpha1.ProxyMode
	annotated v1alpha1.ProxyMode
	broken    []string // modes that cannot work
	want      string   // mode and origin
	logged    string   // in the first line of the log
	err       string   // its beginning
}

var selectCases = map[string]selectCase{
	"nothing asked for": {want: "nftables, the best that works here"},
	"no nftables": {
		broken: []string{"nftables"}, want: "iptables, the best that works here",
		logged: "nftables lacks something",
	},
	"nothing works": {
		broken: []string{"nftables", "iptables", "userspace"}, logged: "nftables lacks something",
		err: "nftables lacks something\niptables lacks something",
	},
	"a flag":                   {args: []string{"--proxy-mode=iptables"}, want: "iptables, --proxy-mode"},
	"a flag that cannot":       {args: []string{"--proxy-mode=iptables"}, broken: []string{"iptables"}, err: "iptables lacks something"},
	"a file":                   {file: "iptables", want: "iptables, kube-proxy.yaml"},
	"a file and an annotation": {file: "iptables", annotated: "nftables", want: "iptables, kube-proxy.yaml"},
	"an annotation":            {annotated: "iptables", want: "iptables, the Node's annotation " + modeAnnotation},
	"an annotation that cannot": {
		annotated: "iptables", broken: []string{"iptables"}, want: "nftables, the best that works here",
		logged: "iptables lacks something",
	},
	"an annotation that a gate forbids": {
		args: []string{"--feature-gates=KubeProxyIPVS=false"}, annotated: "ipvs", want: "nftables, the best that works here",
		logged: "mode ipvs is switched off by a feature gate",
	},
	"fallback": {
		args: []string{"--proxy-mode=ipvs", "--proxy-mode-fallback"}, broken: []string{"ipvs"},
		want: "iptables, --proxy-mode-fallback, since ipvs cannot work here", logged: "ipvs lacks something",
	},
	"fallback not needed": {args: []string{"--proxy-mode=iptables", "--proxy-mode-fallback"}, want: "iptables, --proxy-mode"},
	"fallback leads nowhere": {
		args: []string{"--proxy-mode=iptables", "--proxy-mode-fallback"}, broken: []string{"iptables", "userspace"},
		logged: "iptables lacks something",
		err:    "iptables lacks something\nuserspace lacks something",
	},
	"fallback is for old modes": {
		args: []string{"--proxy-mode=nftables", "--proxy-mode-fallback"}, broken: []string{"nftables"}, err: "nftables lacks something",
	},
}

// TestSelectMode checks the order in which modes are tried for each origin, and the
// reasons for modes that cannot work.
func TestSelectMode(t *testing.T) {
	for situation, tt := range selectCases {
		t.Run(situation, func(t *testing.T) {
			o := NewOptions(modes.All())
			o.FlagSet = pflag.NewFlagSet("", pflag.ContinueOnError)
			o.Flags.Register(o.FlagSet)
			o.FlagSet.BoolVar(&o.Fallback, "proxy-mode-fallback", false, "")
			if err := o.FlagSet.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			c, err := config.Load(&o.Flags, config.Linux)
			if err != nil {
				t.Fatal(err)
			}
			if tt.file != "" {
				c.Mode, o.Flags.Config = tt.file, "kube-proxy.yaml"
			}
			logger, log := kit.NewLog(0)
			x, err := selectMode(logger, o.Candidates(c, tt.annotated), func(w Candidate) (*Selected, error) {
				if slices.Contains(tt.broken, string(w.Name)) {
					return nil, fmt.Errorf("%s lacks something", w.Name)
				}
				return &Selected{Config: w.configFor(c), Origin: w.origin}, nil
			})
			got, text := "", ""
			if x != nil {
				got = string(x.Config.Mode) + ", " + x.Origin
			}
			if err != nil {
				text = err.Error()
			}
			if got != tt.want || !strings.HasPrefix(text, tt.err) || tt.err == "" && text != "" {
				t.Errorf("mode %q, error %q; want %q, %q", got, text, tt.want, tt.err)
			}
			first, _, _ := strings.Cut(log.String(), "\n")
			if (tt.logged == "") != (log.Len() == 0) || !strings.Contains(first, tt.logged) {
				t.Errorf("log:\n%swant %q first", log.String(), tt.logged)
			}
		})
	}
}

// Modes whose rules have the names that every service proxy uses refuse to serve
// labelled Services alone.
func TestCheckNamed(t *testing.T) {
	table := modes.All()
	for _, d := range table {
		if err := table.CheckNamed(&config.Config{}, d); err != nil {
			t.Errorf("mode %s without a name: %v", d.Name, err)
		}
		err := table.CheckNamed(&config.Config{ProxyName: "mesh"}, d)
		if d.Name == config.NFTables {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		want := fmt.Sprintf("mode %s cannot work with --service-proxy-name mesh: its rules have the names that every service proxy uses, so those of the proxy that serves the other Services would be removed; take mode nftables on Linux, where the table has the name in its own, or leave the name out", d.Name)
		if err == nil || err.Error() != want {
			t.Errorf("mode %s with a name: %v\nwant %s", d.Name, err, want)
		}
	}
}

// TestSelectOfNone checks that a table without a mode for the system is an error.
func TestSelectOfNone(t *testing.T) {
	if x, err := selectMode(klog.Background(), nil, nil); x != nil || !errors.Is(err, mode.ErrNoSystem) {
		t.Errorf("selectMode = %v, %v", x, err)
	}
}
