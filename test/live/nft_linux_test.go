// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
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
	kit.Need(t, err == nil, "nft: %v\n%s\nwas given:\n%s", err, out, text)
	return out
}

// foreign lists all rules on h except ours, with their handles, which would change if the
// rules were added again.
func foreign(t *testing.T, h *netlab.Host) string {
	t.Helper()
	settings := regexp.MustCompile(`(?ms)^table ip6? kube-settings \{.*?^\}\n`)
	return settings.ReplaceAllString(ourTables().ReplaceAllString(nft(t, h, "list ruleset\n", "-a"), ""), "")
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

// nftTableTamperings are changes to the table of web other than to its rules and
// elements. Each of them interrupts Services.
var nftTableTamperings = []string{
	"nft add table ip kube-services '{ flags dormant; }'",
	"nft add chain ip kube-services output '{ policy drop; }'",
	"nft 'delete chain ip kube-services prerouting; add chain ip kube-services prerouting " +
		"{ type nat hook prerouting priority 300; policy accept; }; add rule ip kube-services prerouting jump dispatch'",
	"nft 'delete table ip kube-services; add table ip kube-services { flags dormant; }'",
}

// TestNFTablesDrift checks that changes to flags, policies, hooks and priorities are
// repaired, counted and logged, by a running proxy and by a starting one.
func TestNFTablesDrift(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.flags = append(m.flags, "--iptables-sync-period=1h")
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	p := c.start(t, web)
	want := c.want(t)
	cells := c.cells([]*netlab.Host{c.Node, c.Host("shopper"), c.Host("customer")}, web)
	for _, deed := range nftTableTamperings {
		p = c.undoneWithin(t, p, deed, time.Second)
		c.awaitSnapshot(t, want)
		c.check(t, want, cells)
	}
	for _, deed := range nftTableTamperings {
		p.Stop(t)
		c.sh(t, deed+"\n")
		p = c.start(t)
		c.check(t, want, cells)
	}
}

// undoneWithin is undone in so short a time, once in a few tries: the machine may have
// much else to do. Each try has a proxy of its own, as repairs of a dispute wait.
func (c *cluster) undoneWithin(t *testing.T, p *program.Proxy, deed string, most time.Duration) *program.Proxy {
	t.Helper()
	var took []time.Duration
	for range 4 {
		begin := time.Now()
		c.tamperIPVSAndAwaitRepair(t, p, deed)
		if took = append(took, time.Since(begin)); took[len(took)-1] <= most {
			t.Logf("%s: undone after %v", deed, took)
			return p
		}
		p.Stop(t)
		p = c.start(t)
	}
	t.Errorf("%s: undone after %v, want once within %s", deed, took, most)
	return p
}

// nftTamperings are changes to the table of a cluster that has a Service of number 10 and
// one with affinity of number 11.
var nftTamperings = []struct{ name, text string }{
	{"flushes a chain", "flush chain ip kube-services dispatch"},
	{"flushes a hook", "flush chain ip6 kube-services prerouting"},
	{"deletes elements", "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }; " +
		"delete element ip6 kube-services nodeports { udp . 30010 }; delete element ip kube-services cluster-ips { 10.96.0.11 }"},
	{"adds an element", "add element ip kube-services services { 10.96.0.99 . tcp . 80 : drop }"},
	{"inserts a rule", "insert rule ip kube-services dispatch ip daddr 10.96.0.0/16 drop"},
	{"replaces what an address leads to", "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }; " +
		"add element ip kube-services services { 10.96.0.10 . tcp . 80 : goto refuse }"},
	{"adds a chain of its own", "add chain ip6 kube-services mine { type filter hook forward priority 0; }; " +
		"add rule ip6 kube-services mine drop"},
	{"empties a map", "flush map ip kube-services endpoints"},
	{"deletes a table", "delete table ip kube-services"},
	{"deletes both tables", "delete table ip kube-services; delete table ip6 kube-services"},
}

// TestNFTablesRepairsTampering checks that changes to our rules are found, repaired and
// reported, and that foreign rules stay unchanged.
func TestNFTablesRepairsTampering(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	// The one is the default, the other too long to repair anything.
	m.flags = append(m.flags, "--iptables-min-sync-period=1s", "--iptables-sync-period=1h")
	c := newCluster(t, m)
	nft(t, c.Node, foreignNFTables)
	theirs := foreign(t, c.Node)
	web := app{name: "web", number: 10}.on(c.webs()...)
	sticky := app{name: "sticky", number: 11, sticky: 600, external: "Local"}.on(c.webs()...)
	p := c.start(t, web, sticky)
	want := c.awaitProgrammed(t)
	rules := ours(t, c.Node)

	for _, deed := range nftTamperings {
		t.Run(deed.name, func(t *testing.T) {
			reported := p.Log.Count("Others had altered our rules")
			nft(t, c.Node, deed.text+"\n")
			begin := time.Now()
			c.awaitSnapshot(t, want)
			t.Logf("healed after %s", time.Since(begin))
			kit.Until(t, "a word of it in the log", func() bool { return p.Log.Count("Others had altered our rules") > reported })
			kit.Same(t, "our rules are not as they were (-before +after)", rules, ours(t, c.Node))
		})
	}
	c.check(t, want, c.cells(c.clientHosts(), web, sticky))
	c.save(t, web.on(c.Host("web-1")))
	c.remove(t, "sticky.yaml")
	c.awaitProgrammed(t)
	kit.Same(t, "the rules of others changed (-before +after)", theirs, foreign(t, c.Node))

	p.Stop(t)
	out, err := program.Run(t, c.Node, kubeProxy.Command("--cleanup"))
	kit.Check(t, err == nil, "cleanup: %v\n%s", err, out)
	kit.Same(t, "after a cleanup (-rules of others +all rules)", theirs, nft(t, c.Node, "list ruleset\n", "-a"))
}

// TestFlushedRuleset checks that our rules are soon back after a flush of the whole
// ruleset.
func TestFlushedRuleset(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.start(t, web)
	for range 3 {
		nft(t, c.Node, "flush ruleset\n")
		c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
	}
}

// TestMarksOfOthers checks that packets of the node keep their port if a program sets the
// masquerade bit on them, as wg-quick does, and no Service is concerned.
func TestMarksOfOthers(t *testing.T) {
	t.Parallel()
	ipTables := defaultMode()
	ipTables.flags, ipTables.iptables = append(ipTables.flags, "--proxy-mode=iptables", "--iptables-localhost-nodeports=false"), "nft"
	for _, m := range []mode{defaultMode(), ipTables, inUserspace("nft")} {
		t.Run(m.proxyMode(), func(t *testing.T) {
			t.Parallel()
			checkMarks(t, m)
		})
	}
}

func checkMarks(t *testing.T, m mode) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10, plain: true}.on(c.Host("web-1"))
	c.start(t, web)
	customer := c.Host("customer")
	if _, err := customer.Echo("", target); err != nil {
		t.Fatal(err)
	}
	for command, to := range map[string]netip.Addr{"iptables": customer.IPv4, "ip6tables": customer.IPv6} {
		mark := exec.Command(command, "-t", "mangle", "-A", "OUTPUT", "-d", to.String(), "-j", "MARK", "--set-xmark", "0xca6c/0xca6c")
		if out, err := program.Run(t, c.Node, mark); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, proto := range []string{"tcp", "udp"} {
			a, err := c.Node.Ask(t.Context(), netlab.Query{Proto: proto, To: netip.AddrPortFrom(to, target)})
			kit.Check(t, err == nil && a.Outcome == netlab.Answered && a.Client == a.From,
				"%s to %s: %s, sent from %s and came from %s, %v", proto, to, a.Outcome, a.From, a.Client, err)
		}
	}
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts(), web))
}

// dropForward makes the node's firewall drop forwarded packets by default, as container
// engines do.
func (c *cluster) dropForward(t *testing.T) {
	t.Helper()
	c.restoreBothFamilies(t, "*filter\n:FORWARD DROP [0:0]\nCOMMIT\n")
	q := netlab.Query{Proto: "tcp", To: netip.AddrPortFrom(c.Host("web-1").IPv4, target), Timeout: netlab.SilenceTimeout}
	if a, err := c.Host("customer").Ask(t.Context(), q); err != nil || a.Outcome != netlab.TimedOut {
		t.Fatalf("to an endpoint itself: %s, %v; want nothing to be passed on", a.Outcome, err)
	}
}

// TestIPTablesForwardClosed checks that masqueraded traffic reaches its endpoints on such
// a node. Traffic between pods must be allowed by others, as without a proxy.
func TestIPTablesForwardClosed(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		c := newCluster(t, m)
		c.dropForward(t)
		web := app{name: "web", number: 10}.on(c.webs()...)
		p := c.start(t, web)
		want := c.awaitProgrammed(t)
		var lines conversations
		for _, x := range c.cells([]*netlab.Host{c.Host("customer"), c.Node}, web) {
			lines = append(lines, open(t, x, c.port()))
		}
		c.check(t, want, c.cells([]*netlab.Host{c.Host("customer"), c.Node}, web))
		p.Stop(t)
		lines.checkAnswered(t)
	})
}

// TestUserspaceForwardClosed checks the same for all clients of mode userspace, also
// while the kernel forwards instead of the process, and after the process is back.
func TestUserspaceForwardClosed(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		c := newCluster(t, inUserspace(m.iptables))
		c.dropForward(t)
		web := app{name: "web", number: 10}.on(c.webs()...)
		local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
		p := c.start(t, web, local)
		want := c.awaitProgrammed(t)
		loads := c.loads(t, web, local)
		p.Stop(t)
		c.check(t, want, c.cells(c.clientHosts(), web, local))
		lines, packets := c.converse(t, "tcp", local, 1), c.converse(t, "udp", local, 1)
		p = c.launch(t)
		c.awaitProgrammed(t)
		lines.checkSameServer(t)
		packets.checkAnswered(t)
		c.check(t, want, c.cells(c.clientHosts(), web, local))
		t.Logf("%d connections made meanwhile", connectionsOf(loads))
		lossless(t, loads)
		p.Stop(t)
	})
}

// ruleCase is a connection, and the rules of others that concern it alone, by the address of
// its client.
type ruleCase struct {
	number int
	probe  probe
	client *netlab.Host
	device string // by which it enters the node, "" for a process of the node
	// leads are where the Service leads, and the device. Without a Service it is where it goes.
	leads netip.AddrPort
	leave string
	local bool // it ends on the node
	// relayed means that the node relays it.
	relayed bool
	rules   map[string]*madeRule
}

// madeRule is a rule of a case. Its comment in the kernel is its id.
type madeRule struct {
	id, chain, text string
	kinds           []string
	ends            bool // a packet that matches it ends here, or goes elsewhere
}

// hooks are those that the packet passes.
func (c *ruleCase) hooks() []string {
	switch {
	case c.device == "" && c.local:
		return []string{"output", "postrouting", "prerouting", "input"}
	case c.device == "":
		return []string{"output", "postrouting"}
	case c.local:
		return []string{"prerouting", "input"}
	}
	return []string{"prerouting", "forward", "postrouting"}
}

// condition is one sort of match.
type condition struct {
	kind  string
	words func(*ruleMaker) string
	// protocol means that it names a protocol, which one condition of a rule may do.
	protocol bool
	// vague means that explain does not know what it asks for.
	vague bool
	// hooks are those that take it, all if it is empty.
	hooks string
}

// ruleMaker makes rules that others could have.
type ruleMaker struct {
	*rand.Rand
	family     service.Family
	conditions []condition
	*ruleCase
	hook    string // at which the rules are evaluated
	table   string // of iptables
	nat     bool
	early   bool // before connection tracking
	chains  int
	batch   int
	text    []string // of chains
	writing func(r *ruleMaker, chain, conditions, verdict, comment string) string
	verdict func(r *ruleMaker, depth int) (words string, ends bool)
}

func pick[T any](r *ruleMaker, all ...T) T { return all[r.IntN(len(all))] }

// byFamily returns the first text for IPv4.
func (r *ruleMaker) byFamily(v4, v6 string) string {
	if r.family == service.IPv4 {
		return v4
	}
	return v6
}

// ip is the word of nft for the family.
func (r *ruleMaker) ip() string { return r.byFamily("ip", "ip6") }

// single returns an address that matters more often than not.
func (r *ruleMaker) single() string {
	return pick(r, r.probe.from.Addr().String(), r.probe.to.Addr().String(), r.leads.Addr().String(), r.leads.Addr().String(),
		r.byFamily("10.96.0.10", "fd00:10:96::a"), r.byFamily("10.244.1.11", "fd00:10:244:1::11"), r.byFamily("203.0.113.7", "2001:db8:3::7"))
}

// addr returns an address or a prefix.
func (r *ruleMaker) addr() string {
	s := r.single()
	if r.IntN(2) == 0 {
		return s
	}
	a := netip.MustParseAddr(s)
	p, _ := a.Prefix(a.BitLen() - pick(r, 1, 4, 8, 16, 24))
	return p.String()
}

// distinct joins n different results of draw.
func (r *ruleMaker) distinct(n int, draw func() string) string {
	var all []string
	for range n {
		if s := draw(); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return strings.Join(all, ", ")
}

func (r *ruleMaker) port() string {
	return pick(r, fmt.Sprint(r.probe.to.Port()), fmt.Sprint(r.leads.Port()), "443")
}

// not returns the word for the opposite, or nothing.
func (r *ruleMaker) not(word string) string { return pick(r, "", "", word+" ") }

func (r *ruleMaker) proto() string {
	if r.IntN(5) == 0 {
		return pick(r, "tcp", "udp")
	}
	return r.probe.proto.String()
}

// draw returns conditions for one rule, and their kinds.
func (r *ruleMaker) draw() (words string, kinds []string) {
	var all []string
	protocol := false
	for range pick(r, 1, 1, 1, 2, 2, 3) {
		c := r.conditions[r.IntN(len(r.conditions))]
		if protocol && c.protocol || c.hooks != "" && !slices.Contains(strings.Fields(c.hooks), r.hook) || slices.Contains(kinds, c.kind) || c.vague && r.IntN(3) > 0 {
			continue
		}
		protocol = protocol || c.protocol
		all, kinds = append(all, c.words(r)), append(kinds, c.kind)
	}
	return strings.Join(all, " "), kinds
}

// chain makes a chain and those that it leads to, and returns its name.
func (r *ruleMaker) chain(depth int) string {
	name := fmt.Sprintf("c%d-%d-%d", r.batch, r.number, r.chains)
	r.chains++
	count := 1
	if r.IntN(2) == 0 || depth > 0 {
		count += r.IntN(3)
	}
	lines := []string{}
	for range count {
		x := &madeRule{id: fmt.Sprintf("r%d.%d.%d", r.batch, r.number, len(r.rules)), chain: name}
		r.rules[x.id] = x
		words, kinds := r.draw()
		verdict, ends := r.verdict(r, depth)
		x.kinds, x.ends, x.text = kinds, ends, r.writing(r, name, words, verdict, x.id)
		lines = append(lines, x.text)
	}
	r.text = append(r.text, r.block(name, lines))
	return name
}

// block writes a chain.
func (r *ruleMaker) block(name string, rules []string) string {
	if r.table != "" {
		return strings.Join(rules, "\n") + "\n"
	}
	return "chain " + name + " {\n" + strings.Join(rules, "\n") + "\n}\n"
}

// nftConditions are the conditions of nft.
var nftConditions = []condition{
	{kind: "address", words: func(r *ruleMaker) string {
		return r.ip() + " " + pick(r, "saddr", "daddr") + " " + r.not("!=") + r.addr()
	}},
	{kind: "address set", words: func(r *ruleMaker) string {
		return r.ip() + " " + pick(r, "saddr", "daddr") + " " + r.not("!=") + "{ " + r.distinct(3, r.single) + " }"
	}},
	{kind: "address range", words: func(r *ruleMaker) string {
		return r.ip() + " daddr " + r.not("!=") + r.byFamily(pick(r, "10.244.0.0-10.244.1.255", "10.96.0.10-10.96.0.11", "192.0.2.0-192.0.2.10"), pick(r, "fd00:10:244::-fd00:10:244:1::ffff", "fd00:10:96::a-fd00:10:96::b", "2001:db8:2::-2001:db8:2::10"))
	}},
	{kind: "named set", words: func(r *ruleMaker) string { return r.ip() + " daddr " + r.not("!=") + "@near" }},
	{kind: "concatenation", protocol: true, words: func(r *ruleMaker) string {
		return r.ip() + " daddr . th dport " + r.not("!=") + "{ " + r.distinct(3, func() string { return r.single() + " . " + r.port() }) + " }"
	}},
	{kind: "concatenation of ranges", words: func(r *ruleMaker) string {
		return r.ip() + " saddr . " + r.ip() + " daddr " + r.not("!=") + "{ " + r.addr() + " . " + r.addr() + " }"
	}},
	{kind: "named concatenation", protocol: true, words: func(r *ruleMaker) string {
		return r.ip() + " daddr . meta l4proto . th dport " + r.not("!=") + "@ports"
	}},
	{kind: "port", protocol: true, words: func(r *ruleMaker) string {
		return pick(r, "th", r.proto()) + " dport " + r.not("!=") + r.port()
	}},
	{kind: "port set", protocol: true, words: func(r *ruleMaker) string {
		return pick(r, "th", r.proto()) + " dport " + r.not("!=") + pick(r, "{ 80, 8080 }", "{ 22, 79-81, 8000-8100 }", "{ 443, 30000-32767 }", "{ "+r.port()+" }")
	}},
	{kind: "port range", protocol: true, words: func(r *ruleMaker) string {
		return r.proto() + " dport " + pick(r, "1-1023", "!= 1-1023", "8000-9000", "< 1024", "<= 80", "> 80", ">= 8080", "!= 80")
	}},
	{kind: "protocol", protocol: true, words: func(r *ruleMaker) string {
		return pick(r, "meta l4proto", r.byFamily("ip protocol", "ip6 nexthdr")) + " " + r.not("!=") + pick(r, r.proto(), "{ tcp, udp }", "{ sctp, "+r.proto()+" }")
	}},
	{kind: "in", hooks: "prerouting input forward", words: func(r *ruleMaker) string {
		return "iifname " + r.not("!=") + pick(r, `"eth0"`, `"veth-*"`, `"lo"`, `"veth-web-1"`, `"veth-shopper"`, `{ "eth0", "veth-shopper" }`)
	}},
	{kind: "in index", hooks: "prerouting input forward", words: func(r *ruleMaker) string {
		return "iif " + r.not("!=") + pick(r, `"eth0"`, `"lo"`, `"veth-shopper"`, `{ "eth0", "lo" }`)
	}},
	{kind: "out", hooks: "forward output postrouting", words: func(r *ruleMaker) string {
		return "oifname " + r.not("!=") + pick(r, `"eth0"`, `"veth-*"`, `"lo"`, `"veth-web-1"`)
	}},
	{kind: "out index", hooks: "forward output postrouting", words: func(r *ruleMaker) string {
		return "oif " + r.not("!=") + pick(r, `"eth0"`, `"lo"`, `"veth-web-1"`)
	}},
	{kind: "state", words: func(r *ruleMaker) string {
		return "ct state " + r.not("!=") + pick(r, "new", "established,related", "new,untracked", "invalid", "untracked")
	}},
	{kind: "state map", words: func(r *ruleMaker) string {
		return "ct state { new, " + pick(r, "established", "invalid") + " }"
	}},
	{kind: "status", words: func(r *ruleMaker) string {
		return "ct status " + pick(r, "dnat", "& dnat == 0", "& (dnat|expected) == dnat")
	}},
	{kind: "assured", words: func(*ruleMaker) string { return "ct status & (assured|seen-reply) == 0" }},
	{kind: "direction", words: func(r *ruleMaker) string { return "ct direction " + pick(r, "original", "reply") }},
	{kind: "original destination", words: func(r *ruleMaker) string {
		return "ct original " + r.ip() + " " + pick(r, "saddr", "daddr") + " " + r.not("!=") + r.single()
	}},
	{kind: "original port", protocol: true, words: func(r *ruleMaker) string {
		return "meta l4proto " + r.proto() + " ct original proto-dst " + r.not("!=") + r.port()
	}},
	{kind: "tracked protocol", protocol: true, words: func(r *ruleMaker) string { return "ct protocol " + r.proto() }},
	{kind: "mark", words: func(r *ruleMaker) string {
		return "meta mark & " + pick(r, "0xff ", "0x3 ") + pick(r, "==", "!=") + " " + pick(r, "0", "1", "3")
	}},
	{kind: "mark of the mode", vague: true, words: func(r *ruleMaker) string {
		return "meta mark " + pick(r, "0", "& 0x4000 == 0x4000", "0x4000", "!= 0", "0x1-0xff")
	}},
	{kind: "connection mark", words: func(r *ruleMaker) string { return "ct mark " + pick(r, "0", "7", "!= 7", "and 0x4 == 4") }},
	{kind: "fib type", words: func(r *ruleMaker) string {
		return "fib " + pick(r, "saddr", "daddr") + " type " + r.not("!=") + pick(r, "local", "unicast", "{ local, broadcast }")
	}},
	{kind: "reverse path", hooks: "prerouting", words: func(r *ruleMaker) string {
		return pick(r, "fib saddr oif exists", "fib saddr oif missing", `fib saddr oifname "eth0"`, "fib saddr . iif oif missing")
	}},
	{kind: "flags", protocol: true, words: func(r *ruleMaker) string {
		return "tcp flags " + pick(r, "& (fin|syn|rst|ack) == syn", "syn", "& (fin|syn|rst|ack) != syn", "& ack == 0", "& (syn|ack) == ack", "& (fin|rst) == 0", "{ syn, ack }")
	}},
	{kind: "family", words: func(r *ruleMaker) string {
		return pick(r, "meta protocol "+r.byFamily("ip", "ip6"), "ct l3proto "+r.byFamily("ipv4", "ipv6"))
	}},
	{kind: "packet type", hooks: "prerouting input forward", words: func(r *ruleMaker) string { return "pkttype " + r.not("!=") + pick(r, "host", "broadcast") }},
	{kind: "icmp", protocol: true, words: func(r *ruleMaker) string {
		return r.byFamily("icmp", "icmpv6") + " type " + r.not("!=") + pick(r, "echo-request", "{ echo-request, destination-unreachable }")
	}},
	{kind: "map", words: func(r *ruleMaker) string {
		return "meta mark set " + r.ip() + " daddr map { " + r.leads.Addr().String() + " : 0x1 } meta mark & 0xff == " + pick(r, "0", "1")
	}},
	{kind: "client port", protocol: true, vague: true, words: func(r *ruleMaker) string { return r.proto() + " sport " + pick(r, "1024-65535", "< 1024") }},
	{kind: "limit", vague: true, words: func(r *ruleMaker) string { return "limit rate " + r.not("over") + "1/hour" }},
	{kind: "header", vague: true, words: func(r *ruleMaker) string {
		return r.byFamily(pick(r, "ip ttl < 65", "ip dscp cs0", "ip version 4", "ip length < 100"), pick(r, "ip6 hoplimit < 65", "ip6 dscp cs0", "ip6 length < 100"))
	}},
	{kind: "chance", vague: true, words: func(*ruleMaker) string { return "numgen random mod 2 == 0" }},
	{kind: "length", vague: true, words: func(*ruleMaker) string { return "meta length < 100" }},
	{kind: "owner", vague: true, hooks: "output", words: func(*ruleMaker) string { return "meta skuid 0" }},
}

// nftRule writes a rule of nft. The counter counts what the conditions let through.
func nftRule(_ *ruleMaker, _, conditions, verdict, comment string) string {
	return fmt.Sprintf("%s counter %s comment \"%s\"", conditions, verdict, comment)
}

// nftVerdict returns what ends a rule, if anything.
func nftVerdict(r *ruleMaker, depth int) (words string, ends bool) {
	to := func() string { return r.chain(depth + 1) }
	deep := depth >= 2
	n := r.IntN(20)
	switch {
	case r.nat && n < 10 && r.hook != "postrouting":
		return pick(r, "dnat "+r.ip()+" to "+r.byFamily("10.244.1.12", "fd00:10:244:1::12"), "redirect"), true
	case r.nat && n < 10:
		return "masquerade", false
	case n < 9:
		return "drop", true
	case n == 9 && !r.nat && !strings.HasSuffix(r.hook, "routing"):
		return "reject", true
	case n < 12:
		return "accept", false
	case n == 12:
		return "return", false
	case n < 15:
		return pick(r, "meta mark set 1", "meta mark set meta mark or 0x3", "ct mark set 7", "meta mark set ct mark"), false
	case n == 15 && r.early:
		return "notrack", false
	case n < 17 && !deep:
		return "jump " + to(), false
	case n == 17 && !deep:
		return "goto " + to(), false
	case n == 18 && !deep && r.device != "":
		key := pick(r, r.ip()+" daddr vmap { "+r.leads.Addr().String(), "ct state vmap { established : accept, new", "meta l4proto vmap { icmp : drop, "+r.proto(), "ct mark vmap { 7 : accept, 0", "meta mark & 0xff vmap { 1-3 : accept, 0")
		return key + " : " + pick(r, "drop", "jump "+to(), "goto "+to(), "accept", "return") + " }", false
	}
	return "", false
}

// iptablesConditions are the matches of iptables.
var iptablesConditions = []condition{
	{kind: "-s", words: func(r *ruleMaker) string { return r.not("!") + "-s " + r.addr() }},
	{kind: "-d", words: func(r *ruleMaker) string { return r.not("!") + "-d " + r.addr() }},
	{kind: "-p", protocol: true, words: func(r *ruleMaker) string { return r.not("!") + "-p " + r.proto() }},
	{kind: "-i", hooks: "prerouting input forward", words: func(r *ruleMaker) string {
		return r.not("!") + "-i " + pick(r, "eth0", "veth-+", "lo", "veth-shopper", "eth+")
	}},
	{kind: "-o", hooks: "forward output postrouting", words: func(r *ruleMaker) string {
		return r.not("!") + "-o " + pick(r, "eth0", "veth-+", "lo", "veth-web-1")
	}},
	{kind: "--dport", protocol: true, words: func(r *ruleMaker) string {
		p := r.proto()
		return "-p " + p + " -m " + p + " " + r.not("!") + "--dport " + pick(r, r.port(), "1:1023", "8000:9000", ":80", "8080:")
	}},
	{kind: "multiport", protocol: true, words: func(r *ruleMaker) string {
		return "-p " + r.proto() + " -m multiport " + r.not("!") + "--dports " + pick(r, "80,8080", "22,8000:9000", "1:100,443", r.port())
	}},
	{kind: "--tcp-flags", protocol: true, words: func(r *ruleMaker) string {
		return "-p tcp -m tcp " + r.not("!") + pick(r, "--syn", "--tcp-flags ACK NONE", "--tcp-flags SYN NONE", "--tcp-flags SYN SYN", "--tcp-flags SYN,ACK SYN", "--tcp-flags ALL SYN", "--tcp-flags FIN,RST NONE", "--tcp-flags SYN,ACK SYN,ACK", "--tcp-flags ALL NONE", "--tcp-flags ACK ACK")
	}},
	{kind: "mark", words: func(r *ruleMaker) string {
		return "-m mark " + r.not("!") + "--mark " + pick(r, "0x0/0xff", "0x1/0x1", "0x3/0x3", "0x1/0xff")
	}},
	{kind: "mark of the mode", vague: true, words: func(r *ruleMaker) string {
		return "-m mark " + r.not("!") + "--mark " + pick(r, "0x0", "0x4000/0x4000")
	}},
	{kind: "conntrack state", words: func(r *ruleMaker) string {
		return "-m conntrack " + r.not("!") + "--ctstate " + pick(r, "NEW", "ESTABLISHED,RELATED", "DNAT", "NEW,UNTRACKED", "INVALID", "NEW,DNAT", "UNTRACKED")
	}},
	{kind: "state", words: func(r *ruleMaker) string {
		return "-m state " + r.not("!") + "--state " + pick(r, "NEW", "ESTABLISHED,RELATED", "INVALID")
	}},
	{kind: "--ctdir", words: func(r *ruleMaker) string { return "-m conntrack --ctdir " + pick(r, "ORIGINAL", "REPLY") }},
	{kind: "--ctorigdst", vague: true, words: func(r *ruleMaker) string { return "-m conntrack " + r.not("!") + "--ctorigdst " + r.single() }},
	{kind: "--ctorigdstport", vague: true, words: func(r *ruleMaker) string { return "-m conntrack " + r.not("!") + "--ctorigdstport " + r.port() }},
	{kind: "--ctstatus", vague: true, words: func(r *ruleMaker) string {
		return "-m conntrack " + r.not("!") + "--ctstatus " + pick(r, "NONE", "ASSURED", "CONFIRMED")
	}},
	{kind: "addrtype local", words: func(r *ruleMaker) string {
		return "-m addrtype " + r.not("!") + pick(r, "--dst-type", "--src-type") + " LOCAL"
	}},
	{kind: "addrtype", vague: true, words: func(r *ruleMaker) string {
		return "-m addrtype " + r.not("!") + pick(r, "--dst-type UNICAST", "--src-type UNICAST", "--src-type LOCAL,UNICAST", r.byFamily("--dst-type BLACKHOLE", "--dst-type UNREACHABLE"))
	}},
	{kind: "set", vague: true, words: func(r *ruleMaker) string {
		return "-m set " + r.not("!") + "--match-set near" + r.byFamily("4", "6") + " " + pick(r, "src", "dst")
	}},
	{kind: "set of ports", vague: true, words: func(r *ruleMaker) string {
		return "-m set " + r.not("!") + "--match-set ports" + r.byFamily("4", "6") + " " + pick(r, "src,src", "dst,dst")
	}},
	{kind: "icmp", protocol: true, words: func(r *ruleMaker) string {
		return r.byFamily("-p icmp -m icmp --icmp-type ", "-p ipv6-icmp -m icmp6 --icmpv6-type ") + pick(r, "echo-request", "destination-unreachable")
	}},
	{kind: "physdev", vague: true, hooks: "prerouting input forward", words: func(r *ruleMaker) string { return "-m physdev " + r.not("!") + "--physdev-in veth-web-1" }},
	{kind: "--sport", protocol: true, vague: true, words: func(r *ruleMaker) string {
		p := r.proto()
		return "-p " + p + " -m " + p + " " + r.not("!") + "--sport " + pick(r, "1024:65535", ":1023")
	}},
	{kind: "multiport of the client", protocol: true, vague: true, words: func(r *ruleMaker) string {
		return "-p " + r.proto() + " -m multiport " + r.not("!") + pick(r, "--ports ", "--sports ") + r.port()
	}},
	{kind: "limit", vague: true, words: func(*ruleMaker) string { return "-m limit --limit 1/hour" }},
	{kind: "statistic", vague: true, words: func(*ruleMaker) string { return "-m statistic --mode random --probability 0.5" }},
	{kind: "length", vague: true, words: func(r *ruleMaker) string { return "-m length " + r.not("!") + "--length 0:100" }},
	{kind: "iprange", vague: true, words: func(r *ruleMaker) string {
		return "-m iprange " + r.not("!") + "--dst-range " + r.byFamily("10.244.0.0-10.244.1.255", "fd00:10:244::-fd00:10:244:1::ffff")
	}},
	{kind: "pkttype", vague: true, words: func(r *ruleMaker) string { return "-m pkttype --pkt-type " + pick(r, "unicast", "broadcast") }},
	{kind: "tos", vague: true, words: func(r *ruleMaker) string { return "-m tos " + r.not("!") + "--tos 0x00" }},
	{kind: "connmark", vague: true, words: func(r *ruleMaker) string { return "-m connmark " + r.not("!") + "--mark 0x0" }},
	{kind: "owner", vague: true, hooks: "output", words: func(*ruleMaker) string { return "-m owner --uid-owner 0" }},
	{kind: "dscp", vague: true, words: func(r *ruleMaker) string { return "-m dscp " + r.not("!") + "--dscp 0x00" }},
}

// iptablesRule writes a rule of iptables.
func iptablesRule(_ *ruleMaker, chain, conditions, verdict, comment string) string {
	return strings.Join(strings.Fields("-A "+chain+" "+conditions+" -m comment --comment "+comment+" "+verdict), " ")
}

// iptablesVerdict returns the target of a rule, if any.
func iptablesVerdict(r *ruleMaker, depth int) (words string, ends bool) {
	deep := depth >= 2
	n := r.IntN(20)
	switch {
	case r.table == "nat" && n < 10 && r.hook != "postrouting":
		return "-j DNAT --to-destination " + r.byFamily("10.244.1.12", "fd00:10:244:1::12"), true
	case r.table == "nat" && n < 10:
		return "-j MASQUERADE", false
	case r.table != "nat" && n < 9:
		return "-j DROP", true
	case n == 9 && r.table == "filter":
		return "-j REJECT", true
	case n < 12:
		return "-j ACCEPT", false
	case n == 12:
		return "-j RETURN", false
	case n < 15:
		return pick(r, "-j MARK --set-xmark 0x1/0xff", "-j MARK --set-xmark 0x3/0x3", "-j MARK --set-xmark 0x0/0x3", "-j CONNMARK --set-xmark 0x7/0xffffffff"), false
	case n == 15 && r.table == "raw":
		return "-j CT --notrack", false
	case n < 17 && !deep:
		return "-j " + r.chain(depth+1), false
	case n == 17 && !deep:
		return "-g " + r.chain(depth+1), false
	}
	return "", false
}

// TestSecondDraw connects to a Service one of whose four endpoints answers nothing, and drops a fifth of the
// answers of another one. Without a second draw each client that got the silent one waits in vain. With it they
// get another one, those of an endpoint whose answer was lost may stay there, and connections that are open stay.
func TestSecondDraw(t *testing.T) { withNFTables(t, secondDraw) }

func secondDraw(t *testing.T, m mode) {
	m.plain = true // accelerated sockets do not pass rules
	flags := m.flags
	m.flags = append(slices.Clip(flags), "--second-draw=false")
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()...)
	sticky := app{name: "sticky", number: 11, sticky: 3600}.on(c.Host("web-2"))
	c.save(t, web, sticky)
	unwatched := web.service()
	unwatched.Annotations = map[string]string{"kubeproxy.io/silent-endpoints": "off"} // which would leave web-1 out
	c.write(t, "web.yaml", program.Manifest[any](t, unwatched, web.slice(service.IPv4), web.slice(service.IPv6)))
	nft(t, c.Host("web-1"), "table inet silent { chain in { type filter hook input priority 0; tcp dport 8080 drop; }; }\n")
	nft(t, c.Host("web-3"), "table inet lossy { chain out { type filter hook output priority 0; tcp flags & (syn|ack) == (syn|ack) numgen random mod 5 0 drop; }; }\n")
	connect := func(f service.Family, patience time.Duration) netlab.Report {
		return c.Host("shopper").Load(t.Context(), netlab.LoadConfig{
			Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, f), Timeout: patience}, Workers: 60, Total: 60,
		}).Wait()
	}
	p := c.launch(t)
	p.AwaitLogs(t, `"Programmed"`, m.proxyMode()+" FAMILY")
	if r := connect(service.IPv4, 3*time.Second); r.Outcomes[netlab.TimedOut] < 3 && !m.userspace {
		t.Errorf("without a second draw: %s, want some without an answer", r)
	}
	p.Stop(t)
	c.mode.flags = flags
	p = c.start(t)
	conn, _, err := c.Host("shopper").Open(t.Context(), netlab.Query{Proto: "tcp", To: sticky.at(service.ClusterIP, service.IPv4)})
	kit.Must(t, err)
	defer conn.Close()
	for _, f := range service.Families {
		if r := connect(f, 20*time.Second); r.Outcomes[netlab.Answered] != 60 || r.Backends["web-1"] != nil {
			t.Errorf("%s with a second draw: %s, want all of them answered", f, r)
		} else {
			t.Logf("%s: %s", f, r)
		}
	}
	n := metric(t, p, "kubeproxy_second_draws_total")
	kit.Check(t, n != 0 || m.userspace, "no second draw is counted")
	if a, err := conn.Ask(t.Context()); err != nil || a.Outcome != netlab.Answered {
		t.Errorf("the connection that was open: %v, %v", a, err)
	}
}
