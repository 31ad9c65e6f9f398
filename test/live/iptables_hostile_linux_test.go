// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// hostileDuration is how long the tampering goes on. make test uses the default; for a
// minute of it, run go test ./test/live -run Hostile -hostile 1m.
var hostileDuration = flag.Duration("hostile", 6*time.Second, "how long TestIPTablesHostileEdits alters rules")

// tamperer changes rules of its own and of others at random.
type tamperer struct {
	cluster   *cluster
	rand      *rand.Rand
	lastRules string // its own rules after its last change, in both families
	failed    int    // changes that did not apply to the present state
	done      int
}

// conntrackRule is a rule of the tamperer that needs connection tracking. The kernel
// tracks connections only while a rule needs it (kernel:
// net/netfilter/nf_conntrack_proto.c, nf_ct_netns_do_put). So flushing the last such rule interrupts every
// translated connection until there is one again.
const conntrackRule = "*mangle\n-A FORWARD -m conntrack --ctstate INVALID -j RETURN\nCOMMIT\n"

// similarChains are chains whose names resemble ours but that belong to others.
const similarChains = `KUBE-(MARK-DROP|FIREWALL|KUBELET-CANARY)`

// proxyRuleLine matches the lines of a listing that are ours.
var proxyRuleLine = regexp.MustCompile(`^(:|-A )KUBE-|-[jg] KUBE-`)

// foreignRules returns the lines of a listing that are not ours.
func foreignRules(listing string) string {
	var b strings.Builder
	keep := regexp.MustCompile(similarChains)
	for line := range strings.Lines(listing) {
		if (!proxyRuleLine.MatchString(line) || keep.MatchString(line)) && !strings.HasPrefix(line, "*") && line != "COMMIT\n" && !strings.Contains(line, " ACCEPT\n") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// ruleTamperings are changes to our rules by a restore of both families: flush, insert,
// delete, replace, unhook, add a chain, or load a whole table as firewalls do on a
// reload.
var ruleTamperings = []string{
	"*nat\n-F KUBE-SERVICES\nCOMMIT\n",
	"*nat\n-F KUBE-POSTROUTING\nCOMMIT\n",
	"*nat\n-D KUBE-SERVICES 1\nCOMMIT\n",
	"*nat\n-I KUBE-SERVICES 1 -p tcp -j RETURN\nCOMMIT\n",
	"*nat\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x10/0x10\nCOMMIT\n",
	"*nat\n-R KUBE-MARK-MASQ 1 -j MARK --set-xmark 0x20/0x20\nCOMMIT\n",
	"*nat\n-D PREROUTING -j KUBE-SERVICES\nCOMMIT\n",
	"*nat\n-D POSTROUTING -j KUBE-POSTROUTING\n-F KUBE-POSTROUTING\n-X KUBE-POSTROUTING\nCOMMIT\n",
	"*nat\n:KUBE-SVC-STRAY - [0:0]\n-A KUBE-SVC-STRAY -j RETURN\nCOMMIT\n",
	"*filter\n-F KUBE-FORWARD\n-F KUBE-REFUSE\nCOMMIT\n",
	"*filter\n-D FORWARD -j KUBE-FORWARD\nCOMMIT\n",
	"*filter\n-F\nCOMMIT\n",
	"*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n" + foreignIPTables,
}

// ownRuleEdits are the tamperer's changes to its own rules.
var ownRuleEdits = []string{
	"*nat\n-A MINE -p udp -m udp --dport 5353 -j RETURN\nCOMMIT\n",
	"*nat\n-D MINE 1\nCOMMIT\n",
	"*nat\n-I PREROUTING 1 -j MINE\nCOMMIT\n",
	"*nat\n-A POSTROUTING -j MINE\nCOMMIT\n",
	"*filter\n-I FORWARD 1 -m comment --comment \"not KUBE\" -j ACCEPT\nCOMMIT\n",
	"*filter\n-A INPUT -p icmp -j ACCEPT\nCOMMIT\n",
}

// tamper makes a random change, if the tables accept it, and describes it. It requires
// that its own rules are as it left them.
func (h *tamperer) tamper(t *testing.T) string {
	t.Helper()
	now := foreignRules(h.cluster.listing(t))
	if diff := cmp.Diff(h.lastRules, now); diff != "" {
		t.Errorf("rules of others changed (-as they were left +now):\n%s", diff)
	}
	list := ruleTamperings
	switch {
	case h.done == 0:
		list = ruleTamperings[:1] // so that one changes our rules and is detected
	case h.rand.IntN(3) == 0:
		list = ownRuleEdits
	}
	deed := list[h.rand.IntN(len(list))]
	h.restore(t, deed, "iptables-restore")
	if !strings.Contains(deed, "icmp") {
		h.restore(t, deed, "ip6tables-restore")
	}
	h.lastRules = foreignRules(h.cluster.listing(t))
	return deed
}

func (h *tamperer) restore(t *testing.T, deed, name string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(h.cluster.commands, name), "--noflush", program.AwaitLock)
	cmd.Stdin = bytes.NewBufferString(deed)
	h.done++
	if _, err := program.Run(t, h.cluster.Node, cmd); err != nil {
		h.failed++
	}
}

// TestIPTablesHostileEdits inserts, deletes and flushes own and foreign rules while
// traffic runs. Connections go on, the tamperer's rules stay unchanged, and when it ends,
// all is as desired.
func TestIPTablesHostileEdits(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		c.restoreBothFamilies(t, foreignIPTables+conntrackRule)
		web := app{name: "web", number: 10}.on(c.webs()...)
		cart := app{name: "cart", number: 11, external: "Local"}.on(c.webs()...)
		c.save(t, web, cart)
		p := c.start(t)
		c.awaitProgrammed(t)
		lines, packets := c.converse(t, "tcp", web, 1), c.converse(t, "udp", web, 1)
		load := c.Host("shopper").Load(t.Context(), netlab.LoadConfig{
			Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4)}, Workers: 2, Pause: 20 * time.Millisecond,
		})
		seed := rand.Uint64()
		h := &tamperer{cluster: c, rand: rand.New(rand.NewPCG(seed, seed)), lastRules: foreignRules(c.listing(t))}
		const fewest = 20 // changes
		for end := time.Now().Add(*hostileDuration); (time.Now().Before(end) || h.done < fewest) && !t.Failed(); {
			deed := h.tamper(t)
			packets.await(t, "goes on", func(o conversation, a netlab.Answer) bool { return a.Backend == o.server })
			if lines.checkSameServer(t); t.Failed() {
				t.Logf("after %s, with:\n%s", deed, c.listing(t))
			}
			if h.rand.IntN(4) == 0 { // a Service changes as well
				c.save(t, cart.on(c.webs()[h.rand.IntN(3):]...))
			}
		}
		want := c.awaitProgrammed(t)
		if diff := cmp.Diff(h.lastRules, foreignRules(c.listing(t))); diff != "" {
			t.Errorf("rules of others changed (-as they were left +now):\n%s", diff)
		}
		lines.checkSameServer(t)
		packets.checkSameServer(t)
		c.check(t, want, c.cells(c.clientHosts()[:2], web, cart))
		report := load.Stop()
		if report.Outcomes[netlab.Answered] == 0 {
			t.Error("no connection was made all along")
		}
		reported := p.Log.Count("Others had altered our rules")
		if reported == 0 {
			t.Error("the log does not say that anybody altered rules")
		}
		t.Logf("seed %d: %d deeds of which %d found nothing to do, reported %d times; new connections: %s", seed, h.done, h.failed, reported, report)
	})
}
