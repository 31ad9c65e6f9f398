// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/test/program"
)

// TestIPVSRender checks that ip, ipvsadm, ipset and iptables accept the output of render,
// print the same state, and that the proxy programs the same.
func TestIPVSRender(t *testing.T) {
	eachIPVSVariant(t, func(t *testing.T, m mode, variant string) {
		m.flags, m.scheduler = append(m.flags, "--ipvs-scheduler=mh"), "mh"
		// The Node does not contain the node's other addresses, so render does not know
		// them.
		m.flags = append(m.flags, "--nodeport-addresses=192.0.2.10/32,2001:db8:2::10/128")
		m.trackOptions.NodePorts = prefixes("192.0.2.10/32", "2001:db8:2::10/128")
		c := newCluster(t, m)
		c.commands = program.IPTables(t, variant)
		c.save(t, c.matrix()...)
		args := append([]string{"render", "--manifests=" + c.dir, "--hostname-override=node-a"}, m.flags...)
		out, err := exec.Command(kubeProxy.Path, args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		rendered := c.pipe(t, string(out))
		routes := c.routesIPVS(t)
		if diff := gocmp.Diff(rendered, c.savedState(t)); diff != "" {
			t.Errorf("the commands have something else than they were given (-given +have):\n%s", diff)
		}
		c.sh(t, "ipvsadm -C\n")
		c.cleanUp(t, "", 0)
		for command, lines := range c.savedState(t) {
			if len(lines) > 0 {
				t.Errorf("after a cleanup, %s still has\n%s", command, strings.Join(lines, "\n"))
			}
		}
		c.useVariant(t, variant)
		c.start(t)
		if diff := gocmp.Diff(rendered, c.savedState(t)); diff != "" {
			t.Errorf("the proxy makes something else (-rendered +made):\n%s", diff)
		}
		if diff := gocmp.Diff(routes, c.routesIPVS(t)); diff != "" {
			t.Errorf("the proxy makes other routes (-rendered +made):\n%s", diff)
		}
	})
}

// saveCommands print the state of a command in the form that it accepts.
var saveCommands = map[string]string{
	"grep ^- | ipvsadm -R": "ipvsadm -S -n",
	"ipset restore":        "ipset save",
	"iptables-restore":     "iptables-save",
	"ip6tables-restore":    "ip6tables-save",
}

// pipe passes the parts of text to their commands, and returns the lines of those that
// can print them again, as savedState does.
func (c *cluster) pipe(t *testing.T, text string) map[string][]string {
	t.Helper()
	given, routes := map[string]string{}, 0
	for part := range strings.SplitSeq(text, "# for ") {
		command, input, _ := strings.Cut(part, "\n")
		if command == "" {
			continue
		}
		c.sh(t, "cat <<'INPUT' | "+command+"\n"+input+"INPUT\n")
		if strings.HasPrefix(command, "ip -") {
			routes++
			continue
		}
		if saveCommands[command] == "" {
			t.Errorf("there is a part for %q", command)
		}
		given[command] += input
	}
	if len(given) != len(saveCommands) || routes != len(service.Families) {
		t.Errorf("there are parts for %d commands and %d times routes, want %d and %d:\n%s", len(given), routes, len(saveCommands), len(service.Families), text)
	}
	all := map[string][]string{}
	for command, input := range given {
		all[command] = linesIPVS(input)
	}
	return all
}

// savedState is what commands print of virtual servers, ipsets and rules.
func (c *cluster) savedState(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for command, saver := range saveCommands {
		all[command] = linesIPVS(c.sh(t, saver+"\n"))
	}
	return all
}

// defaultsInListing matches defaults that commands add.
var defaultsInListing = regexp.MustCompile(` (bucketsize|initval) \S+|\[\d+:\d+\]`)

// podGatewayEntries are addresses of the node towards its pods. The Node does not contain
// them, so render does not know them.
var podGatewayEntries = []string{"add KUBE-VS-NODE-IPS 10.244.1.1", "add KUBE-VS6-NODE-IPS fd00:10:244:1::1"}

// linesIPVS returns the lines of mode ipvs in text, in an order that does not depend on
// their program: rules of a chain keep theirs.
func linesIPVS(text string) []string {
	type line struct{ chain, text string }
	var lines []line
	table := ""
	for s := range strings.Lines(text) {
		s = strings.TrimSpace(defaultsInListing.ReplaceAllString(s, ""))
		name, isTable := strings.CutPrefix(s, "*")
		fields := strings.Fields(s)
		switch {
		case isTable:
			table = name
		case table != "" && strings.Contains(s, "KUBE-V"):
			chain, _ := strings.CutPrefix(fields[0], ":")
			if chain == "-A" {
				chain = "rule of " + fields[1]
			}
			lines = append(lines, line{table + " " + chain, table + " " + s})
		case table == "" && len(fields) > 0 && fields[0] != "#" && !slices.Contains(podGatewayEntries, s):
			lines = append(lines, line{s, s})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.chain, b.chain) })
	var all []string
	for _, l := range lines {
		all = append(all, l.text)
	}
	return all
}

// routesIPVS returns the routes of mode ipvs.
func (c *cluster) routesIPVS(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, ip := range []string{"ip", "ip -6"} {
		for route := range strings.Lines(c.sh(t, ip+" route show table local proto 107\n")) {
			all = append(all, strings.TrimSpace(route))
		}
	}
	slices.Sort(all)
	return all
}
