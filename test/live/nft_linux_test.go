// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// nft passes text to nft on h and returns its output.
func nft(t *testing.T, h *netlab.Host, text string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath("nft")
	if err != nil {
		path = "/usr/sbin/nft"
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the program nft is needed: %v", err)
	}
	cmd := exec.Command(path, append(args, "-f", "-")...)
	cmd.Stdin = strings.NewReader(text)
	out, err := program.Run(t, h, cmd)
	if err != nil {
		t.Fatalf("nft: %v\n%s\nwas given:\n%s", err, out, text)
	}
	return out
}

// foreign lists all rules on h except ours, with their handles, which would change if the
// rules were added again.
func foreign(t *testing.T, h *netlab.Host) string {
	t.Helper()
	return ourTables().ReplaceAllString(nft(t, h, "list ruleset\n", "-a"), "")
}

// ours lists our two tables, IPv6 last.
func ours(t *testing.T, h *netlab.Host) string {
	t.Helper()
	tables := ourTables().FindAllString(nft(t, h, "list ruleset\n"), -1)
	slices.Sort(tables)
	return strings.Join(tables, "")
}

// ourTables matches our tables in a listing.
func ourTables() *regexp.Regexp {
	return regexp.MustCompile(`(?ms)^table ip6? kube-services \{.*?^\}\n`)
}

// foreignNFTables are rules of others, some with names much like ours.
const foreignNFTables = `
table ip kube-services-2 {
	set services { type ipv4_addr; elements = { 10.96.0.10 } }
	chain dispatch {
		ip daddr @services counter
	}
}
table inet kube-services {
	map services { type inet_service : verdict; elements = { 80 : accept } }
	chain dispatch {
		tcp dport vmap @services
	}
}
table ip nat {
	chain POSTROUTING {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr 172.16.0.0/12 oifname "eth9" masquerade comment "somebody else's"
	}
}
table inet filter {
	set allowed { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 192.0.2.0/24 } }
	chain input {
		type filter hook input priority filter; policy accept;
		ct state invalid drop
		ip saddr @allowed accept
	}
	chain forward { type filter hook forward priority filter; policy accept; }
}
table bridge kube-services {
	chain c {
		accept
	}
}
`

// withoutClients removes from a listing the affinity entries, which the kernel itself
// adds.
func withoutClients(rules string) string {
	return regexp.MustCompile(`(?ms)^\tmap clients-.*?^\t\}\n`).ReplaceAllString(rules, "")
}
