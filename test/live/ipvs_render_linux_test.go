// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/test/nftcommand"
)

// What render prints is taken by ip, ipvsadm and nft, comes back from ipvsadm as
// it was, and is what the proxy makes.
func TestIPVSRender(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		nftcommand.NeedTables(t)
		m.flags, m.scheduler = append(m.flags, "--ipvs-scheduler=mh"), "mh"
		// Of the node's other addresses, its Node says nothing, nor does render.
		m.flags = append(m.flags, "--nodeport-addresses=192.0.2.10/32,2001:db8:2::10/128")
		m.means.NodePorts = prefixes("192.0.2.10/32", "2001:db8:2::10/128")
		c := newCluster(t, m)
		c.save(t, c.matrix()...)
		args := append([]string{"render", "--manifests=" + c.dir, "--hostname-override=node-a"}, m.flags...)
		out, err := exec.Command(kubeProxy.Path, args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		text := string(out)
		if taken, want := c.pipe(t, text), []string{"ip -batch -", "grep ^- | ipvsadm -R", "ip -6 -batch -", "grep ^- | ipvsadm -R", "nft -f -"}; !slices.Equal(taken, want) {
			t.Errorf("there are parts for %q, want %q", taken, want)
		}
		rendered, beside := virtualServers(text), c.besideIPVS(t)
		if got := virtualServers(c.sh(t, "ipvsadm -S -n\n")); len(rendered) == 0 || !slices.Equal(got, rendered) {
			t.Errorf("ipvsadm was given\n%s\nand has\n%s", strings.Join(rendered, "\n"), strings.Join(got, "\n"))
		}
		c.sh(t, "ipvsadm -C\nip link delete kube-ipvs0\nnft delete table ip kube-ipvs\nnft delete table ip6 kube-ipvs\n")
		c.start(t)
		if diff := cmp.Diff(rendered, virtualServers(c.sh(t, "ipvsadm -S -n\n"))); diff != "" {
			t.Errorf("the proxy makes other virtual servers (-rendered +made):\n%s", diff)
		}
		if diff := cmp.Diff(beside, c.besideIPVS(t)); diff != "" {
			t.Errorf("beside virtual servers, the proxy makes something else (-rendered +made):\n%s", diff)
		}
	})
}

// pipe has commands take the parts of text that are for them, and returns what
// commands there were.
func (c *cluster) pipe(t *testing.T, text string) []string {
	t.Helper()
	var taken []string
	for part := range strings.SplitSeq(text, "# for ") {
		command, input, _ := strings.Cut(part, "\n")
		if command != "" {
			taken = append(taken, command)
			c.sh(t, "cat <<'INPUT' | "+command+"\n"+input+"INPUT\n")
		}
	}
	return taken
}

// besideIPVS returns the routes and rules that mode ipvs has beside virtual servers,
// in an order that does not depend on who made them, but for what the address
// leads to that the node has towards its pods.
func (c *cluster) besideIPVS(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, f := range service.Families {
		ip, table := []string{"ip", "ip -6"}[f], []string{"ip", "ip6"}[f]
		routes := strings.Split(c.sh(t, ip+" route show table local proto 107\n"), "\n")
		rules := strings.FieldsFunc(c.sh(t, "nft list table "+table+" kube-ipvs\n"), func(r rune) bool { return strings.ContainsRune("{,}\n", r) })
		unnamed := []string{"10.244.1.1", "fd00:10:244:1::1"}[f] + " return"
		for _, line := range append(routes, rules...) {
			if !strings.Contains(line, unnamed) {
				all = append(all, f.String()+": "+strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(all)
	return all
}

// virtualServers are the lines of ipvsadm in text, sorted.
func virtualServers(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "-") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines
}
