// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"flag"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"kubeproxy/common/document"
	"kubeproxy/test/kit"
)

var update = flag.Bool("update", false, "rewrite the goldens in testdata")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		kit.WriteFile(t, path, got)
	}
	kit.CompareGolden(t, path, got)
}

// reports are a node on which all is well, and one with a foreign text that would move
// the cursor of a terminal.
func reports() map[string]*Report {
	return map[string]*Report{
		"healthy": {
			Node: "node-a", System: "linux", Modes: []string{"nftables"}, Proxy: "kube-proxy v1.0.0 answers at 127.0.0.1:10249, mode nftables, node node-a", Findings: []Finding{},
			Checks: []CheckResult{{"forwarding", OK, "of IPv4"}, {"bridges", Skipped, "no bridge has a port"}},
		},
		"broken": {
			Node: "node-a", System: "linux", Modes: []string{"nftables", "iptables"},
			Findings: sorted([]Finding{
				{Topic: NodePortHidden, Subject: "30080/tcp", What: "the NodePort 30080/tcp of Service shop/web hides process 4242 (nginx\x1b[2J -g daemon off), which listens on 0.0.0.0:30080",
					Fix: "kill 4242", Advice: "or let the program listen on another port, or give the Service another NodePort"},
				{Topic: ModeUnavailable, Mode: "iptables", Subject: "IPv4", What: "there is no match statistic (kernel module xt_statistic)", Fix: "modprobe -a xt_statistic"},
				{Topic: IPForward, Subject: "net.ipv4.ip_forward", What: "net.ipv4.ip_forward is 0 and should be 1", Fix: "sysctl -w net.ipv4.ip_forward=1"},
				{Topic: PodCIDR, What: "the podCIDR 10.1.0.0/24 of Node node-a is not in the clusterCIDR 10.244.0.0/16", Advice: "set clusterCIDR"},
			}),
			Checks: []CheckResult{{"forwarding", Found, "of IPv4"}, {"rights", Failed, "ask whether the account may list services: Post \"https://192.0.2.1:6443/apis/authorization.k8s.io/v1/selfsubjectaccessreviews\": net/http: TLS handshake timeout"}, {"firewalls", OK, ""}},
		},
	}
}

// TestReports compares both forms with goldens. The text fits 100 columns and has no
// codes but colours, which JSON does not have.
func TestReports(t *testing.T) {
	for name, r := range reports() {
		var text, coloured, inJSON bytes.Buffer
		if err := (View{}).Text(&text, r); err != nil {
			t.Fatal(err)
		}
		if err := (View{Colour: true}).Text(&coloured, r); err != nil {
			t.Fatal(err)
		}
		if err := r.JSON(&inJSON); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".txt", text.String())
		golden(t, name+".json", inJSON.String())
		for line := range strings.Lines(text.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > document.Width {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
		plain := coloured.String()
		for _, c := range []document.Colour{document.Green, document.Yellow, document.Red, document.Bold, "\x1b[0m"} {
			plain = strings.ReplaceAll(plain, string(c), "")
		}
		if plain != text.String() || plain == coloured.String() || strings.Contains(plain+inJSON.String(), "\x1b") {
			t.Errorf("%s: other text with colours than without:\n%q", name, coloured.String())
		}
	}
}
