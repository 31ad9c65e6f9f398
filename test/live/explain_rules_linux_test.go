// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/explain"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

var (
	explainSeed  = flag.Uint64("explain-seed", 7, "the seed of TestExplainRules and TestExplainManyRules, 0 for any, as with KUBEPROXY_NIGHTLY=1; the log has it")
	explainTimes = flag.Int("explain-times", 1, "how many times more packets TestExplainManyRules sends")
)

// TestExplainRules has random rules of others meet packets, and requires that explain says of
// each packet what the kernel does: which rule ends it by the counters of the rules, and
// where it arrives. It does so in three of nine ways, which the seed chooses.
func TestExplainRules(t *testing.T) {
	t.Parallel()
	explainRules(t, 3, 1)
}

// TestExplainManyRules does so in all ways with some thousand rules, and bounds the doubts. With
// -v, it prints them.
func TestExplainManyRules(t *testing.T) {
	t.Parallel()
	explainRules(t, 9, 4**explainTimes)
}

// batchSize is how many packets meet one set of rules of others.
const batchSize = 25

// explainRules compares batches of rules in some of the modes and ways to write rules.
func explainRules(t *testing.T, ways, batches int) {
	sum := &rulesSum{seed: *explainSeed, doubts: map[string]*doubted{}}
	if sum.seed == 0 || kit.Nightly() {
		sum.seed = uint64(time.Now().UnixNano())
	}
	random := rand.New(rand.NewPCG(sum.seed, 1))
	for _, n := range random.Perm(9)[:ways] {
		name, written := [...]string{"nftables", "iptables", "userspace"}[n/3], [...]string{"nft", "iptables-nft", "iptables-legacy"}[n%3]
		m, first := defaultMode(), random.IntN(1000)
		if name != "nftables" {
			m.iptables, m.userspace = strings.TrimPrefix(written, "iptables-"), name == "userspace"
			m.flags = append(m.flags, "--proxy-mode="+name, "--iptables-localhost-nodeports=false")
		}
		t.Run("mode "+name+", rules of "+written, func(t *testing.T) {
			r := newRulesRun(t, m, strings.TrimPrefix(strings.TrimPrefix(written, "nft"), "iptables-"), sum)
			r.relays = name == "userspace"
			for i := range batches {
				r.batch(t, first+i)
			}
		})
	}
	sum.judge(t)
}

// rulesRun compares explain with a kernel.
type rulesRun struct {
	*cluster
	*rulesSum
	proxy   *program.Proxy
	wire    *wire
	variant string
	relays  bool // the mode relays, so that packets for Services end on the node
	// old are the rules of iptables of the batch before, by family and "table chain".
	old map[service.Family]map[string][]string
}

// rulesSum is what was compared in all ways.
type rulesSum struct {
	seed         uint64
	cases, rules int
	met          int // rules that a packet came to
	told         int // packets without a doubt
	doubts       map[string]*doubted
	spent        time.Duration
}

// doubted is how many rules of a kind were in doubt.
type doubted struct {
	rules, doubts int
	vague         bool
}

// Clients of cases are in these prefixes, by family: outside, pods, the node.
var caseClients = [2][3]string{{"198.18.0.", "10.244.3.", "198.18.1."}, {"2001:db8:18::", "fd00:10:244:3::", "2001:db8:18:1::"}}

func newRulesRun(t *testing.T, m mode, variant string, sum *rulesSum) *rulesRun {
	t.Helper()
	r := &rulesRun{cluster: newCluster(t, m), variant: variant, rulesSum: sum}
	r.save(t, app{name: "far", number: 10, plain: true}.on(r.Host("web-3")), app{name: "near", number: 11, plain: true}.on(r.Host("web-1")))
	var b strings.Builder
	for i := range batchSize {
		for _, f := range service.Families {
			fmt.Fprintf(&b, "ip addr add %s%d dev lo nodad\n", caseClients[f][2], i+1)
		}
	}
	fmt.Fprintf(&b, "ipset create near4 hash:net\nipset create near6 hash:net family inet6\nipset add near4 10.244.1.0/24\nipset add near6 fd00:10:244:1::/64\n")
	fmt.Fprintf(&b, "ipset create ports4 hash:ip,port\nipset create ports6 hash:ip,port family inet6\nipset add ports4 10.244.1.11,tcp:8080\nipset add ports6 fd00:10:244:1::11,tcp:8080\n")
	fmt.Fprintf(&b, "echo 32768 %d >/proc/sys/net/ipv4/ip_local_port_range\n", firstProbePort-1) // for listeners of the relay
	r.sh(t, b.String())
	r.proxy = r.start(t)
	r.awaitProgrammed(t)
	r.wire = newWire(t, r.Node, r.Host("web-1"), r.Host("web-2"), r.Host("web-3"), r.Host("customer"), r.Host("shopper"))
	if variant != "" {
		r.prepareIPTables(t)
	}
	return r
}

// batch compares one set of rules.
func (r *rulesRun) batch(t *testing.T, n int) {
	t.Helper()
	m := &ruleMaker{Rand: rand.New(rand.NewPCG(r.seed, uint64(n))), family: service.Families[n%2], batch: n}
	m.conditions, m.writing, m.verdict = nftConditions, nftRule, nftVerdict
	if r.variant != "" {
		m.conditions, m.writing, m.verdict = iptablesConditions, iptablesRule, iptablesVerdict
	}
	var cases []*ruleCase
	for i := range batchSize {
		cases = append(cases, r.newCase(m, i+1))
	}
	var k kernelRules
	if r.variant == "" {
		k = r.loadNFT(t, m, cases)
	} else {
		k = r.loadIPTables(t, m, cases)
	}
	seen := r.measure(t, m.family, cases, k)
	for _, c := range cases {
		q := url.Values{"source": {c.probe.from.Addr().String()}, "destination": {c.probe.to.String() + "/" + c.probe.proto.String()}, "interface": {c.device}}
		var x explain.Explanation
		begun := time.Now()
		r.proxy.JSON(t, "/explain?"+q.Encode(), &x)
		r.spent += time.Since(begun)
		r.cases++
		j := &comparison{ruleCase: c, kernelRules: k, answer: &x, seen: seen[c]}
		if wrong := j.compare(); wrong != "" {
			t.Errorf("-explain-seed=%d, batch %d: %s\n%s", r.seed, n, wrong, j.report())
		}
		r.count(j)
	}
}

// newCase draws a connection.
func (r *rulesRun) newCase(m *ruleMaker, number int) *ruleCase {
	f := m.family
	pods := [2][2]string{{"10.244.1.11", "10.244.2.11"}, {"fd00:10:244:1::11", "fd00:10:244:2::11"}}[f]
	node := [2]string{"192.0.2.10", "2001:db8:2::10"}[f]
	far := app{number: 10}
	near := app{number: 11}
	c := &ruleCase{number: number, rules: map[string]*madeRule{}}
	sort := pick(m, 0, 0, 0, 1, 1, 1, 2)
	c.client, c.device = pick(m, r.Host("customer"), r.Host("shopper")), ""
	switch {
	case sort == 2:
		c.client = r.Node
	case c.client == r.Host("customer"):
		c.device = "eth0"
	default:
		c.device = "veth-shopper"
	}
	at := func(text string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(text), port)
	}
	switch m.IntN(8) {
	case 0, 1:
		c.probe.to, c.leads, c.leave = far.at(service.ClusterIP, f), at(pods[1], 8080), "eth0"
	case 2, 3:
		c.probe.to, c.leads, c.leave = near.at(service.ClusterIP, f), at(pods[0], 8080), "veth-web-1"
	case 4:
		c.probe.to, c.leads, c.leave = far.at(service.NodePort, f), at(pods[1], 8080), "eth0"
	case 5:
		c.probe.to, c.leads, c.leave = near.at(service.LoadBalancerIP, f), at(pods[0], 8080), "veth-web-1"
	case 6:
		c.probe.to, c.leave = at(pods[0], pick[uint16](m, 80, 8080)), "veth-web-1"
	case 7:
		c.probe.to, c.local = at(node, pick[uint16](m, 22, 80)), true
	}
	if c.relayed = r.relays && c.leads.IsValid(); c.relayed {
		c.local = true
	}
	if !c.leads.IsValid() {
		c.leads = c.probe.to
	}
	c.probe.proto = pick(m, service.TCP, service.UDP)
	c.probe.from = at(fmt.Sprintf("%s%d", caseClients[f][sort], number), 1)
	return c
}

// kernelRules are what the kernel has loaded.
type kernelRules struct {
	counters func() map[string]int // of rules, by id
	// ids are those of rules that are known by a handle, as "table chain handle".
	ids map[string]string
}

// outcome is what the kernel did.
type outcome struct {
	hits map[string]int
	arrival
}

// measure sends the packets, and again those that nothing shows, as a busy kernel drops some.
func (r *rulesRun) measure(t *testing.T, f service.Family, cases []*ruleCase, k kernelRules) map[*ruleCase]outcome {
	t.Helper()
	numbers := map[uint32]*ruleCase{}
	seen := map[*ruleCase]outcome{}
	open := cases
	for range 3 {
		for _, c := range open {
			c.probe.number = r.wire.next()
			c.probe.from = netip.AddrPortFrom(c.probe.from.Addr(), r.wire.port())
			numbers[c.probe.number] = c
			r.wire.send(t, c.client, c.probe)
		}
		customer, shopper := r.Host("customer"), r.Host("shopper")
		r.wire.await(t, f, [][2]*netlab.Host{{customer, r.Host("web-1")}, {customer, r.Node}, {shopper, r.Host("web-3")}, {shopper, r.Node}, {r.Node, r.Host("web-1")}, {r.Node, r.Host("web-3")}, {r.Node, r.Node}})
		hits := k.counters()
		for n, c := range numbers {
			o := outcome{hits: hits, arrival: seen[c].arrival}
			if a, came := r.wire.arrived[n]; came {
				o.arrival = a
			}
			seen[c] = o
		}
		open = slices.DeleteFunc(slices.Clone(open), func(c *ruleCase) bool { return seen[c].host != nil || len(c.ended(hits)) > 0 })
	}
	return seen
}

// ended returns the rules that ended the packet.
func (c *ruleCase) ended(hits map[string]int) (ids []string) {
	for id, x := range c.rules {
		if x.ends && hits[id] > 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// comparison compares what explain says of a packet with what the kernel does.
type comparison struct {
	*ruleCase
	kernelRules
	answer *explain.Explanation
	seen   outcome
}

// doubt returns whether explain names a rule as one that may end the packet, or one that may
// lead to it. An empty id stands for policies, and rules without one.
func (j *comparison) doubt(id string) bool {
	if x := j.rules[id]; x != nil {
		for _, from := range j.rules {
			if strings.HasSuffix(from.text, " "+x.chain) && j.doubt(from.id) {
				return true
			}
		}
	}
	for _, o := range j.answer.Installed.Others {
		if slices.ContainsFunc(o.Doubts, func(d explain.Doubt) bool { return j.id(d.Rule) == id }) {
			return true
		}
	}
	return false
}

func (j *comparison) doubts() bool {
	return slices.ContainsFunc(j.answer.Installed.Others, func(o explain.Other) bool { return len(o.Doubts) > 0 })
}

// id returns the id of a rule in the words of explain.
func (j *comparison) id(rule string) string {
	if id := regexp.MustCompile(`\br\d+\.\d+\.\d+\b`).FindString(rule); id != "" {
		return id
	}
	m := regexp.MustCompile(`handle (\d+)\)? of chain (\S+) of table (.+)`).FindStringSubmatch(rule)
	if m == nil {
		return ""
	}
	return j.ids[m[3]+" "+m[2]+" "+m[1]]
}

// compare returns what is wrong, "" for nothing.
func (j *comparison) compare() string {
	if j.answer.Installed == nil || slices.ContainsFunc(j.answer.Notes, func(s string) bool { return strings.Contains(s, "could not be") }) {
		return fmt.Sprintf("explain did not follow it: %v", j.answer.Notes)
	}
	hits := j.seen.hits
	fired := false // a rule of which explain cannot tell
	for id := range j.rules {
		fired = fired || hits[id] > 0 && j.doubt(id)
	}
	fired = fired || j.doubt("") && j.seen.host == nil
	ends := false
	for _, o := range j.answer.Installed.Others {
		if o.Does == explain.Passes || o.Does == explain.Unmarks {
			continue
		}
		if id := j.id(o.Rule); id != "" && hits[id] == 0 && !fired {
			return fmt.Sprintf("explain says that rule %s does something (%s), and no packet came to it", id, o.Does)
		}
		ends = ends || o.Does == explain.Drops || o.Does == explain.Refuses || o.Does == explain.Translates
		if (o.Does == explain.Drops || o.Does == explain.Refuses) && j.seen.host != nil {
			return fmt.Sprintf("explain says that %s ends it (%s), and it arrived", o.Rule, o.Does)
		}
	}
	if ends {
		return ""
	}
	if j.diverted("") {
		return ""
	}
	for _, id := range j.ended(hits) {
		// What arrived was not stopped: then the node itself sent more, as it refuses answers.
		stops := strings.Contains(strings.ToLower(j.rules[id].text), " drop") || strings.Contains(strings.ToLower(j.rules[id].text), " reject")
		if !j.doubt(id) && !j.elsewhere() && (j.seen.host == nil || !stops) {
			return fmt.Sprintf("rule %s ended it, and explain does not say so", id)
		}
	}
	return j.compareArrival()
}

// diverted reports whether a rule that may translate the packet, or not track it, in the words of
// explain did so, with a part of its reason. Then what follows concerns another packet.
func (j *comparison) diverted(why string) bool {
	return slices.ContainsFunc(j.answer.Installed.Others, func(o explain.Other) bool {
		return slices.ContainsFunc(o.Doubts, func(d explain.Doubt) bool {
			return (d.Does == explain.Translates || d.Does == explain.Untracks) && strings.Contains(d.Why, why) && j.seen.hits[j.id(d.Rule)] > 0
		})
	})
}

// elsewhere reports whether explain names a difference, as it does in mode iptables where
// a rule of others translates.
func (j *comparison) elsewhere() bool { return j.answer.Verdict != explain.Agree }

// compareArrival compares where the packet arrived, if explain names no rule that ends it.
func (j *comparison) compareArrival() string {
	switch {
	case j.doubts(), j.elsewhere():
		return ""
	case j.seen.host == nil:
		return "explain says that it passes, and it did not arrive"
	}
	path := j.answer.Installed
	if path.Action != "forward" {
		return ""
	}
	if j.relayed { // the relay answers, and sends what is not TCP on
		if j.seen.host.Name != netlab.NodeName && j.probe.proto == service.TCP {
			return fmt.Sprintf("explain says that the node relays it, and it arrived at %s", j.seen.host.Name)
		}
		return ""
	}
	at := j.seen.host.Addr(j.probe.to.Addr())
	i := slices.IndexFunc(path.Targets, func(x explain.Target) bool { return netip.MustParseAddrPort(x.Address).Addr() == at })
	if i < 0 {
		return fmt.Sprintf("explain says that it goes to %v, and it arrived at %s", path.Targets, at)
	}
	// Rules that change the mark may clear the one by which the mode masquerades.
	for _, x := range j.rules {
		if strings.Contains(x.text, "mark set ") || strings.Contains(x.text, "MARK --set") {
			return ""
		}
	}
	masqueraded := path.Targets[i].Client == "masqueraded" || slices.ContainsFunc(path.Others, func(o explain.Other) bool { return o.Does == explain.Masquerades })
	if masqueraded != (j.seen.from != j.probe.from.Addr()) && path.Targets[i].Client != "unknown" {
		return fmt.Sprintf("explain says that its source is masqueraded: %t, and it came from %s", masqueraded, j.seen.from)
	}
	return ""
}

// report describes the connection, its rules and the answer.
func (j *comparison) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s -> %s from %s\n", j.probe.proto, j.probe.from, j.probe.to, j.client.Name)
	for _, id := range slices.SortedFunc(maps.Keys(j.rules), func(a, b string) int { return number(a) - number(b) }) {
		fmt.Fprintf(&b, "  %-14s packets %d  %s\n", j.rules[id].chain, j.seen.hits[id], j.rules[id].text)
	}
	arrived := "nowhere"
	if j.seen.host != nil {
		arrived = j.seen.host.Name + " from " + j.seen.from.String()
	}
	fmt.Fprintf(&b, "arrived: %s\nexplain: %s %q\n", arrived, j.answer.Verdict, j.answer.Differences)
	if j.answer.Installed != nil {
		fmt.Fprintf(&b, "targets %v\n", j.answer.Installed.Targets)
		for _, o := range j.answer.Installed.Others {
			fmt.Fprintf(&b, "  %+v\n", o)
		}
	}
	return b.String()
}

// number returns the number of a rule within its case.
func number(id string) int {
	i, _ := strconv.Atoi(id[strings.LastIndex(id, ".")+1:])
	return i
}

// count counts the doubts about rules by what they ask for. Rules that ask for something
// vague count for that alone.
func (r *rulesRun) count(j *comparison) {
	if !j.doubts() {
		r.told++
	}
	for id, x := range j.rules {
		kinds := slices.DeleteFunc(slices.Clone(x.kinds), func(k string) bool { return !r.isVague(k) })
		if len(kinds) == 0 {
			kinds = x.kinds
		}
		r.rules++
		if j.seen.hits[id] > 0 {
			r.met++
		}
		for _, k := range kinds {
			vague := r.isVague(k)
			k = map[bool]string{true: "nft ", false: "iptables "}[r.variant == ""] + k
			if r.doubts[k] == nil {
				r.doubts[k] = &doubted{vague: vague}
			}
			r.doubts[k].rules++
			if j.doubt(id) {
				r.doubts[k].doubts++
			}
		}
	}
}

func (r *rulesRun) isVague(kind string) bool {
	all := nftConditions
	if r.variant != "" {
		all = iptablesConditions
	}
	i := slices.IndexFunc(all, func(c condition) bool { return c.kind == kind })
	return i >= 0 && all[i].vague
}

// judge requires that explain can tell about most packets, and about rules that ask for what it
// knows. It bounds the doubts about others, too.
func (r *rulesSum) judge(t *testing.T) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(r.doubts)) {
		d := r.doubts[k]
		t.Logf("%-34s rules %4d, in doubt %4d", k, d.rules, d.doubts)
		most := 3 + d.rules/5
		if d.vague {
			most = 3 + d.rules*3/5
		}
		if d.doubts > most {
			t.Errorf("-explain-seed=%d: explain cannot tell about %d of %d rules with %q, at most %d may be", r.seed, d.doubts, d.rules, k, most)
		}
	}
	t.Logf("-explain-seed=%d: %d packets, %d without a doubt, %d rules of which %d met a packet; explain took %s", r.seed, r.cases, r.told, r.rules, r.met, r.spent/time.Duration(max(r.cases, 1)))
	kit.Check(t, r.told >= r.cases*7/10,
		"-explain-seed=%d: explain can tell about %d of %d packets", r.seed, r.told, r.cases)
}

// loadNFT loads the rules of cases as one table of nft.
func (r *rulesRun) loadNFT(t *testing.T, m *ruleMaker, cases []*ruleCase) kernelRules {
	t.Helper()
	type base struct {
		hook     string
		nat      bool
		priority int
		policy   string
		entries  []string
	}
	bases := []*base{}
	for _, hook := range []string{"prerouting", "input", "forward", "output", "postrouting"} {
		priorities := []int{-250, -150, -110, -50, 0, 50, 150}
		if strings.HasSuffix(hook, "routing") && m.IntN(3) == 0 || hook == "prerouting" && m.IntN(3) == 0 {
			priorities = []int{-300}
		}
		bases = append(bases, &base{hook, false, pick(m, priorities...), pick(m, "accept", "accept", "accept", "drop"), nil})
		if hook != "forward" && m.IntN(3) == 0 {
			bases = append(bases, &base{hook, true, map[string]int{"prerouting": -110, "output": -110, "input": 90, "postrouting": 90}[hook] + pick(m, 0, 20), "accept", nil})
		}
	}
	var chains []string
	for _, c := range cases {
		for _, b := range bases {
			if !slices.Contains(c.hooks(), b.hook) || m.IntN(2) == 0 || b.nat && b.hook == "input" {
				continue
			}
			m.ruleCase, m.hook, m.nat, m.early, m.text, m.chains = c, b.hook, b.nat, b.priority == -300, nil, len(chains)
			b.entries = append(b.entries, c.probe.from.Addr().String()+" : jump "+m.chain(0))
			chains = append(chains, m.text...)
		}
	}
	ip := m.ip()
	type4, near, ports := "ipv4_addr", "10.244.1.0/24, 10.96.0.10", "10.96.0.10 . tcp . 80, 10.244.2.11 . tcp . 8080, 10.244.1.11 . udp . 8080"
	if m.family == service.IPv6 {
		type4, near, ports = "ipv6_addr", "fd00:10:244:1::/64, fd00:10:96::a", "fd00:10:96::a . tcp . 80, fd00:10:244:2::11 . tcp . 8080, fd00:10:244:1::11 . udp . 8080"
	}
	var b strings.Builder
	family, others := pick(m, "inet", ip), ""
	if family == "inet" {
		others = "meta nfproto " + m.byFamily("ipv6", "ipv4") + " accept\n"
	}
	fmt.Fprintf(&b, "table %s other {\nset near { type %s; flags interval; elements = { %s }; }\nset ports { type %s . inet_proto . inet_service; elements = { %s }; }\n", family, type4, near, type4, ports)
	for _, c := range chains {
		b.WriteString(c)
	}
	for i, x := range bases {
		typ := map[bool]string{false: "filter", true: "nat"}[x.nat]
		fmt.Fprintf(&b, "chain base%d {\ntype %s hook %s priority %d; policy %s;\n%s%s saddr != { %s } accept\n", i, typ, x.hook, x.priority, x.policy, others, ip, strings.Join(casePrefixes(m.family), ", "))
		if len(x.entries) > 0 {
			fmt.Fprintf(&b, "%s saddr vmap { %s }\n", ip, strings.Join(x.entries, ", "))
		}
		fmt.Fprintf(&b, "}\n")
	}
	b.WriteString("}\n")
	r.nftLoad(t, b.String())
	return kernelRules{counters: func() map[string]int {
		return counters(r.sh(t, "nft list ruleset\n"), `counter packets (\d+) bytes \d+.* comment "(r[\d.]+)"`)
	}}
}

// casePrefixes are those of the clients of cases.
func casePrefixes(f service.Family) []string {
	var all []string
	for _, s := range caseClients[f] {
		all = append(all, s+[2]string{"0/24", "/64"}[f])
	}
	return all
}

// nftLoad replaces the table of others. Rules that nft refuses, such as contradictions, are
// left out.
func (r *rulesRun) nftLoad(t *testing.T, text string) {
	t.Helper()
	r.sh(t, "for f in inet ip ip6; do nft \"delete table $f other\" 2>/dev/null || true; done\n")
	lines := strings.Split(text, "\n")
	for range len(lines) / 10 {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
		out, err := program.Run(t, r.Node, cmd)
		if err == nil {
			return
		}
		refused := regexp.MustCompile(`(?m)^/dev/stdin:(\d+):\d+-\d+: Error: `).FindAllStringSubmatch(out, -1)
		kit.Need(t, len(refused) != 0, "nft: %v\n%s\n%s", err, out, text)
		for _, x := range refused {
			n, _ := strconv.Atoi(x[1])
			t.Logf("nft refuses %q:\n%s", lines[n-1], out)
			lines[n-1] = ""
		}
	}
	t.Fatalf("nft refuses more than a tenth of\n%s", text)
}

// counters finds packets and ids of rules in a listing.
func counters(listing, pattern string) map[string]int {
	hits := map[string]int{}
	for _, x := range regexp.MustCompile(pattern).FindAllStringSubmatch(listing, -1) {
		n, _ := strconv.Atoi(x[1])
		hits[x[2]] += n
	}
	return hits
}

// tableHooks are the hooks of the tables of iptables.
var tableHooks = map[string][]string{
	"raw":    {"prerouting", "output"},
	"mangle": {"prerouting", "input", "forward", "output", "postrouting"},
	"nat":    {"prerouting", "output", "postrouting"},
	"filter": {"input", "forward", "output"},
}

// xtables is the name of a command.
func (r *rulesRun) xtables(f service.Family, suffix string) string {
	return [2]string{"iptables-", "ip6tables-"}[f] + r.variant + suffix
}

// prepareIPTables makes each built-in chain lead to one for the rules of cases. The chain end
// is where the policy decides about them.
func (r *rulesRun) prepareIPTables(t *testing.T) {
	t.Helper()
	for _, f := range service.Families {
		var b strings.Builder
		for _, table := range []string{"raw", "mangle", "nat", "filter"} {
			fmt.Fprintf(&b, "*%s\n:end - [0:0]\n", table)
			for _, hook := range tableHooks[table] {
				fmt.Fprintf(&b, ":other-%s - [0:0]\n-A %s -j other-%s\n", hook, strings.ToUpper(hook), hook)
			}
			if table == "filter" {
				fmt.Fprintf(&b, "-A FORWARD -s %s -g end\n-A FORWARD -j ACCEPT\n", strings.Join(casePrefixes(f), ","))
			}
			fmt.Fprintf(&b, "COMMIT\n")
		}
		r.restore(t, f, b.String())
	}
}

func (r *rulesRun) restore(t *testing.T, f service.Family, text string) {
	t.Helper()
	cmd := exec.Command(r.xtables(f, "-restore"), "--noflush", "--wait=60")
	cmd.Stdin = strings.NewReader(text)
	out, err := program.Run(t, r.Node, cmd)
	kit.Need(t, err == nil, "%v: %v\n%s\n%s", cmd.Args, err, out, text)
}

// loadIPTables loads the rules of cases into the tables of iptables.
func (r *rulesRun) loadIPTables(t *testing.T, m *ruleMaker, cases []*ruleCase) kernelRules {
	t.Helper()
	var b strings.Builder
	made := map[string][]string{} // ids by table and chain, in their order
	for _, table := range []string{"raw", "mangle", "nat", "filter"} {
		var names, rules []string
		for _, hook := range tableHooks[table] {
			names = append(names, ":other-"+hook+" - [0:0]\n")
		}
		if table == "filter" {
			names = append(names, ":FORWARD "+pick(m, "ACCEPT", "DROP")+" [0:0]\n")
		}
		for _, c := range cases {
			rules = append(rules, m.inTable(c, table)...)
		}
		text := strings.Join(rules, "")
		remove := ""
		for old := range r.old[m.family] {
			if chain, is := strings.CutPrefix(old, table+" "); is {
				names, remove = append(names, ":"+chain+" - [0:0]\n"), remove+"-X "+chain+"\n"
			}
		}
		for _, x := range regexp.MustCompile(`-A (c\S+) .*--comment (\S+)`).FindAllStringSubmatch(text, -1) {
			key := table + " " + x[1]
			if made[key] == nil {
				names = append(names, ":"+x[1]+" - [0:0]\n")
			}
			made[key] = append(made[key], x[2])
		}
		fmt.Fprintf(&b, "*%s\n%s%sCOMMIT\n", table, strings.Join(names, ""), text+remove)
	}
	r.restore(t, m.family, b.String())
	if r.old == nil {
		r.old = map[service.Family]map[string][]string{}
	}
	r.old[m.family] = made
	k := kernelRules{ids: map[string]string{}, counters: func() map[string]int {
		return counters(r.sh(t, r.xtables(m.family, "-save")+" -c\n"), `\[(\d+):\d+\] -A .*--comment "?(r[\d.]+)`)
	}}
	if r.variant == "nft" {
		r.findHandles(t, m, made, k.ids)
	}
	return k
}

// inTable makes the rules of a case at some hooks of a table.
func (m *ruleMaker) inTable(c *ruleCase, table string) (rules []string) {
	for _, hook := range tableHooks[table] {
		if !slices.Contains(c.hooks(), hook) || m.IntN(3) > 0 {
			continue
		}
		m.ruleCase, m.table, m.hook, m.text = c, table, hook, nil
		entry := m.chain(0)
		rules = append(append(rules, m.text...), fmt.Sprintf("-A other-%s -s %s -j %s\n", hook, c.probe.from.Addr(), entry))
	}
	return rules
}

// findHandles reads the handles of rules, by which explain names those of iptables-nft. Rules
// of a chain are listed in their order.
func (r *rulesRun) findHandles(t *testing.T, m *ruleMaker, made map[string][]string, ids map[string]string) {
	t.Helper()
	for _, table := range []string{"raw", "mangle", "nat", "filter"} {
		chain, n := "", 0
		for line := range strings.Lines(r.sh(t, "nft -a list table "+m.ip()+" "+table+" 2>/dev/null\n")) {
			rule, handle, is := strings.Cut(strings.TrimSpace(line), " # handle ")
			if name, isChain := strings.CutPrefix(rule, "chain "); isChain {
				chain, n = strings.TrimSuffix(name, " {"), 0
				continue
			}
			if own := made[table+" "+chain]; is && n < len(own) {
				ids[m.ip()+" "+table+" "+chain+" "+handle] = own[n]
				n++
			}
		}
	}
}
