// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// emulatedPause is the pause of clients in a machine with an emulated processor.
const emulatedPause = 100 * time.Millisecond

// TestIPVSSwitch switches between ipvs and every other mode that needs no process. No
// connection may be lost. IPVS itself loses some SCTP connections, independent of the
// switch.
func TestIPVSSwitch(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	newCluster(t, switchableModes()["ipvs"]).switchThrough(t, []string{"ipvs", "nftables", "ipvs", "iptables-legacy", "ipvs", "iptables-nft", "ipvs"}, emulatedPause, service.SCTP)
}

// TestIPVSUserspaceSwitch does the same with mode userspace.
func TestIPVSUserspaceSwitch(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	switchThroughUserspace(t, []string{"ipvs", "userspace-nft", "ipvs", "userspace-legacy"}, emulatedPause)
}

// TestIPVSRulesEnd checks that what mode ipvs refused and dropped is served after a
// switch, by Services or by programs of the node, although virtual servers stay for their
// open connections.
func TestIPVSRulesEnd(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	c := newCluster(t, switchableModes()["ipvs"])
	web := app{name: "web", number: 10}.on(c.webs()...)
	empty, gone := app{name: "empty", number: 11}, app{name: "gone", number: 12}
	away := app{name: "away", number: 13, internal: "Local", external: "Local"}.on(c.Host("web-3"))
	fenced := app{name: "fenced", number: 14, ranges: []string{"192.0.2.77/32", "2001:db8:2::77/128"}}.on(c.webs()...)
	c.save(t, web, empty, gone, away, fenced)
	p := c.start(t)
	c.awaitProgrammed(t)
	lines := c.converse(t, "tcp", web, 1)
	p.Stop(t)
	c.setMode(t, switchableModes()["nftables"])
	p = c.launch(t)
	for _, f := range service.Families {
		p.AwaitLog(t, "takes no new connections from now on", f.String())
	}
	fenced.ranges = nil
	c.save(t, web, empty.on(c.webs()...), away.on(c.Host("web-1")), fenced)
	c.remove(t, "gone.yaml")
	want := c.awaitProgrammed(t)
	c.check(t, want, c.cells(c.clientHosts(), web, empty, away, fenced))
	if _, err := c.Node.Echo("", gone.nodePort()); err != nil {
		t.Fatal(err)
	}
	for _, f := range service.Families {
		for _, x := range c.dials([]*netlab.Host{c.Host("customer")}, gone, service.NodePort, f) {
			if a, err := x.From.Ask(t.Context(), x.Query()); err != nil || a.Backend != c.Node.Name {
				t.Errorf("%s, which a program of the node serves now: %s %s, %v", x, a.Outcome, a.Backend, err)
			}
		}
	}
	lines.checkSameServer(t)
}

// TestIPVSSwitchByReload switches to mode ipvs and back by a changed configuration file.
func TestIPVSSwitchByReload(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	v, path := newVolume(t, "mode: nftables\n")
	to := func(name string) mode {
		m := switchableModes()[name]
		m.flags = append(defaultMode().flags, "--config="+path)
		return m
	}
	c := newCluster(t, to("nftables"))
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	p := c.start(t)
	loads, lines := c.loadsAt(t, emulatedPause, web), c.converseTo(t, "tcp", web)
	for i, name := range []string{"ipvs", "iptables-nft", "ipvs", "nftables"} {
		text := map[string]string{"ipvs": "mode: ipvs\n", "nftables": "mode: nftables\n", "iptables-nft": "mode: iptables\niptables: {localhostNodePorts: false}\n"}[name]
		v.mount(t, fmt.Sprintf("..next-%d", i), text)
		if err := p.Wait(t); err != nil {
			t.Fatalf("the proxy ended with %v, want exit status 0", err)
		}
		said := "Removed what an earlier service proxy left"
		if c.mode.ipvs {
			said = "takes no new connections from now on"
		}
		c.setMode(t, to(name))
		p = c.launch(t)
		for _, f := range service.Families {
			p.AwaitLog(t, said, f.String())
		}
		c.awaitProgrammed(t)
		lines.checkSameServer(t)
		lines = append(lines, c.converseTo(t, "tcp", web)...)
	}
	lossless(t, loads, service.SCTP)
}

func wantWords(t *testing.T, said string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(said, word) {
			t.Errorf("no word of %q:\n%s", word, said)
		}
	}
}

// TestIPVSCleanup checks that a cleanup removes the state of every mode, and leaves
// foreign virtual servers, addresses, ipsets and rules unchanged. It names what it cannot
// remove, and continues.
func TestIPVSCleanup(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	c := newCluster(t, switchableModes()["ipvs"])
	c.installForeignRules(t)
	c.sh(t, foreignIPVS)
	theirs := c.listIPVS(t)
	c.installLeftovers(t)
	const remove = "clean up virtual servers of IPVS for %s: remove virtual servers of IPVS for %[1]s: the command %s-restore is missing"
	wantWords(t, c.cleanUp(t, t.TempDir(), 1),
		fmt.Sprintf(remove, service.IPv4, "iptables-nft"), fmt.Sprintf(remove, service.IPv6, "ip6tables-nft"),
		"clean up iptables-nft: the command iptables-nft-restore is missing", "clean up ip6tables-legacy: the command ip6tables-legacy-restore is missing",
	)
	wantWords(t, c.cleanUp(t, "", 0),
		`"Cleaned up" place="virtual servers of IPVS for IPv4" removed="`, `"Cleaned up" place="virtual servers of IPVS for IPv6" removed="`,
	)
	if diff := cmp.Diff(theirs, c.listIPVS(t)); diff != "" {
		t.Errorf("after a cleanup (-what others have +all):\n%s", diff)
	}
	c.checkOnlyMode(t, "no mode")
	if again := c.cleanUp(t, "", 0); strings.Contains(again, "Cleaned up") {
		t.Errorf("a second cleanup found something:\n%s", again)
	}
}
