// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

var updateInsight = flag.Bool("update-insight", false, "rewrite the sessions in docs/insight.md")

const insightPage = "../../docs/insight.md"

// shownFolder is where the page says that the manifests are.
const shownFolder = "/srv/services"

// insight is a session at a node.
type insight struct {
	kit.Session
	cluster *cluster
	dir     string // stands for shownFolder
}

// linkAsShown returns another path of the manifests. It is as long as shownFolder, so
// that lines are wrapped alike.
func (c *cluster) linkAsShown(t *testing.T) string {
	t.Helper()
	path := filepath.Join("/tmp", fmt.Sprintf("%0*d", len(shownFolder)-len("/tmp/"), os.Getpid()))
	kit.Must(t, os.Symlink(c.dir, path))
	t.Cleanup(func() { _ = os.Remove(path) })
	return path
}

// types runs a command line on the node and shows it with what it prints and how it ends.
func (s *insight) types(t *testing.T, line string) {
	t.Helper()
	args := strings.Fields(strings.ReplaceAll(line, shownFolder, s.dir))
	cmd := exec.Command(args[0], args[1:]...)
	if args[0] == "kube-proxy" {
		cmd = s.cluster.command()
		cmd.Args = slices.Concat([]string{kubeProxy.Path}, args[1:])
	}
	code, out := s.cluster.exit(t, cmd)
	s.Typed(line, steady(strings.ReplaceAll(out, s.dir, shownFolder)), code)
}

// changing are parts of an output that differ from run to run, and what stands for them.
// Checks of doctor that find nothing depend on the machine. The last ones are left out: the
// page has their like elsewhere.
var changing = []struct {
	pattern *regexp.Regexp
	shown   string
}{
	{regexp.MustCompile(`(?m)(^  (ok|skipped) .*\n)+`), "  ...\n"},
	{regexp.MustCompile(`hides process \d+\s+\(\S+\),\s+which\s+listens\s+on\s+`), "hides process 4711 (/usr/bin/metrics),\n            which listens on "},
	{regexp.MustCompile(`kill \d+`), "kill 4711"},
	{regexp.MustCompile(`(?m)^kube-proxy \S+ on node (.*), up \S+: `), "kube-proxy devel on node $1, up 4m: "},
	{regexp.MustCompile(`conntrack v[\d.]+ `), "conntrack v1.4.7 "},
	{regexp.MustCompile(`udp      17 \d+ (.*) use=\d+`), "udp      17 599 $1 use=1"},
	{regexp.MustCompile(`(?s)\n\n  client +.*?\n\n(Rules of others|  connection of |The node does not |Dialed over )`), "\n\n  ...\n\n$1"},
	{regexp.MustCompile(`(?m)^(  (?:here|client) .* refused) .*$`), "$1  250µs  -"},
	{regexp.MustCompile(`TIME +PACKETS`), "TIME   PACKETS"},
	{regexp.MustCompile(`(?m)^  (\S+ +)?packets  .*\n(  \S.*\n)+`), "  ...\n"},
	{regexp.MustCompile(`(?s)  ~ shop/web:lines \(tcp, IPv6\).*\n\nService`), "  ...\n\nService"},
}

// seconds are how long something is past, as status shows it.
var seconds = regexp.MustCompile(`  (\d+m)?\d+s *`)

func steady(text string) string {
	text = seconds.ReplaceAllStringFunc(text, func(s string) string { return fmt.Sprintf("%-*s", len(s), "  5s") })
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.shown)
	}
	return text
}

// TestInsight runs the sessions of docs/insight.md on a node with real faults, and
// compares what is printed with the page.
func TestInsight(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10, plain: true}.on(c.Host("web-1"), c.Host("web-3"))
	web.pods = append(web.pods, pod{c.Host("web-2"), unready})
	local := app{name: "local", number: 11, external: "Local", plain: true}.on(c.Host("web-3"))
	p := c.start(t, web, local)
	const flags = " --manifests " + shownFolder + " --hostname-override node-a --cluster-cidr 10.244.0.0/16,fd00:10:244::/48"
	dir := c.linkAsShown(t)
	started := func(name string) *insight {
		return &insight{kit.Session{Name: name, Prompt: "$", Status: "echo $?"}, c, dir}
	}
	var all []*kit.Session
	shows := func(name string, lines ...string) {
		s := started(name)
		for _, line := range lines {
			s.types(t, line)
		}
		all = append(all, &s.Session)
	}
	shows("endpoint", "kube-proxy explain 10.244.1.13 svc/shop/web:lines")
	shows("local", "kube-proxy explain outside node:30011")
	nft(t, c.Node, "table inet firewall { chain guard { type filter hook forward priority filter; policy drop; ct state established,related accept; ip saddr 192.0.2.0/24 accept comment \"office\"; }; }\n")
	shows("firewall", "kube-proxy explain 10.244.1.13 svc/shop/web:lines", "nft -a list chain inet firewall guard")
	nft(t, c.Node, "delete table inet firewall\n")
	nft(t, c.Node, "table inet firewall { chain guard { type filter hook forward priority filter; ip saddr 10.244.2.0/24 tcp sport 8080 drop comment \"no HTTP\"; }; }\n")
	shows("reply", "kube-proxy explain 10.244.1.13 svc/shop/web:lines")
	nft(t, c.Node, "delete table inet firewall\n")
	c.sh(t, "ip rule add from 10.244.1.0/24 to 10.244.2.0/24 lookup 77; ip route add blackhole default table 77\n")
	shows("route", "kube-proxy explain 10.244.1.13 svc/shop/web:lines")
	c.sh(t, "ip rule del from 10.244.1.0/24 to 10.244.2.0/24 lookup 77; ip route flush table 77\n")
	s := started("stale")
	c.staleEntry(t, s)
	all = append(all, &s.Session)

	removed := c.withApp(t, app{name: "cart", number: 14, plain: true}.on(c.Host("web-2")), "8080", "8081")
	c.awaitProgrammed(t)
	c.inhabit(t, "shopper")
	shows("probe", "kube-proxy explain 10.244.1.13 svc/shop/cart:lines --probe")
	removed()
	c.awaitProgrammed(t)

	c.set(t, "net/ipv4/ip_forward", "0")
	blocked := func() bool {
		_, out := c.ask(t, "status")
		return strings.Contains(out, "traffic is blocked")
	}
	kit.Until(t, "the proxy to see that the node does not forward", blocked)
	shows("status", "kube-proxy status", "kube-proxy status shop/web", "kube-proxy explain 10.244.1.13 svc/shop/web:lines")
	c.set(t, "net/ipv4/ip_forward", "1")
	kit.Until(t, "the proxy to see that the node forwards", func() bool { return !blocked() })

	c.listen(t, "0.0.0.0:30010")
	shows("listener", "kube-proxy doctor"+flags)

	next := dir + ".new"
	t.Cleanup(func() { _ = os.RemoveAll(next) })
	kit.Must(t, os.CopyFS(next, os.DirFS(c.dir)))
	text := app{name: "web", number: 10, sticky: 600, plain: true}.on(c.Host("web-1"), c.Host("web-2")).yaml(t)
	kit.Must(t, os.WriteFile(filepath.Join(next, "web.yaml"), text, 0o600))
	shows("change", "kube-proxy diff --from "+shownFolder+" --manifests "+shownFolder+".new --hostname-override node-a")

	p.Stop(t)
	nft(t, c.Node, "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }\n")
	shows("rule", "kube-proxy diff --manifests "+shownFolder, "kube-proxy diff -o diff --manifests "+shownFolder)
	kit.Page{Path: insightPage, Rewrite: *updateInsight}.Compare(t, all...)
}

// staleEntry has a client of UDP keep its port while the pod of its Service is replaced.
// The proxy deletes the entry of connection tracking. A program that keeps the tables of
// two machines alike, such as conntrackd, brings it back. The session finds and deletes it.
func (c *cluster) staleEntry(t *testing.T, s *insight) {
	t.Helper()
	c.extendUDPTimeout(t)
	names := app{name: "names", number: 12, plain: true}
	c.awaitProgrammed(t, names.on(c.Host("web-3")))
	q := netlab.Query{Proto: "udp", To: netip.MustParseAddrPort("10.96.0.12:80"), From: netip.AddrPortFrom(netip.Addr{}, 5300)}
	client, a, err := c.Host("shopper").Open(t.Context(), q)
	kit.Need(t, err == nil && a.Outcome == netlab.Answered, "%s, %v", a.Outcome, err)
	defer client.Close()
	reaches := func(want string) {
		t.Helper()
		a, err := client.Ask(t.Context())
		kit.Need(t, err == nil && a.Backend == want, "%+v, %v; want an answer of %s", a, err, want)
	}
	reaches("web-3")
	saved := c.sh(t, "conntrack -L -p udp --orig-port-src 5300 -o save 2>/dev/null\n")
	c.awaitProgrammed(t, names.on(c.Host("web-1")))
	reaches("web-1")
	c.sh(t, "conntrack -D -p udp --orig-port-src 5300 2>/dev/null\nconntrack --load-file - <<'END'\n"+saved+"END\n")
	reaches("web-3")
	s.types(t, "kube-proxy explain 10.244.1.13 svc/shop/names:packets/udp")
	s.types(t, "conntrack -D -p udp -s 10.244.1.13 --sport 5300 -d 10.96.0.12 --dport 80")
	c.explain(t, asked{"10.244.1.13", "svc/shop/names:packets/udp", 0, []string{agrees}})
	reaches("web-1")
	c.remove(t, "names.yaml")
	c.awaitProgrammed(t)
}

func TestExplain(t *testing.T) { withNFTables(t, explains) }

func TestIPTablesExplain(t *testing.T)  { eachVariant(t, explains) }
func TestUserspaceExplain(t *testing.T) { withUserspace(t, explains) }
func TestIPVSExplain(t *testing.T)      { withIPVS(t, explains) }

// asked is a question, and what the answer must have.
type asked struct {
	source, destination string
	code                int
	want                []string
}

const agrees = "The node does what it should."

// shown are texts that the answer has in a mode: for a connection that is forwarded, one
// to a NodePort and one that is refused. altered is what a deed does that explain has to
// name, and repaired is a command that succeeds once it is repaired.
type shown struct {
	forwarded, nodePort, refused string
	altered, repaired, named     string
}

func (m mode) shown() shown {
	alter := "iptables --wait=60 -t nat -D OUTPUT -j %[1]s\n"
	look := "iptables --wait=60 -t nat -C OUTPUT -j %[1]s\n"
	missing := `chain OUTPUT of table nat lacks the rule "-j %[1]s"`
	switch {
	case m.userspace:
		const root = "KUBE-PORTALS-HOST"
		return shown{"relay it for shop/web:lines, policy Cluster", "nat KUBE-NODEPORT-CONTAINER", "filter KUBE-REFUSE",
			fmt.Sprintf(alter, root), fmt.Sprintf(look, root), fmt.Sprintf(missing, root)}
	case m.iptables != "":
		const root = "KUBE-SERVICES"
		return shown{"nat KUBE-SVC-", "nat KUBE-NODEPORTS", "filter KUBE-REFUSE",
			fmt.Sprintf(alter, root), fmt.Sprintf(look, root), fmt.Sprintf(missing, root)}
	case m.ipvs:
		return shown{"virtual server 10.96.0.10:80 tcp", "nat KUBE-VS-FRONT", "filter KUBE-VS-REFUSE",
			"ipvsadm -D -t 10.96.0.10:80\n", "ipvsadm -Ln -t 10.96.0.10:80\n", "virtual server 10.96.0.10:80 tcp is missing"}
	}
	return shown{"map endpoints", "map nodeports", "goto refuse",
		"nft delete element ip kube-services services '{ 10.96.0.10 . tcp . 80 }'\n",
		"nft get element ip kube-services services '{ 10.96.0.10 . tcp . 80 }'\n",
		"services lacks the element 10.96.0.10 . tcp . 80"}
}

// explains asks what happens to connections, on a node as it should be and on an altered
// one.
func explains(t *testing.T, m mode) {
	c := newCluster(t, m)
	c.save(t, app{name: "web", number: 10}.on(c.webs()...), app{name: "sticky", number: 11, sticky: 600}.on(c.webs()...),
		app{name: "empty", number: 12}, app{name: "local", number: 13, external: "Local"}.on(c.Host("web-1"), c.Host("web-3")))
	c.start(t)
	c.awaitProgrammed(t)
	s := m.shown()
	for _, q := range []asked{
		{"10.244.1.99", "10.96.0.10:80", 0, []string{"Forwarded to one of", s.forwarded, agrees}},
		{"10.244.1.99", "10.96.0.10:80/udp", 0, []string{"Forwarded to one of", agrees}},
		{"10.244.1.99", "svc/shop/sticky:lines", 0, []string{"sessionAffinity", agrees}},
		{"outside", "node:30010", 0, []string{s.nodePort, "masqueraded", agrees}},
		{"outside", "node:30013", 0, []string{"externalTrafficPolicy Local", "Forwarded to the only endpoint", agrees}},
		{"10.244.1.99", "node:30013", 0, []string{"Forwarded to one of 2", agrees}},
		{"node", "node:30013", 0, []string{"Forwarded to one of 2", agrees}},
		{"node", "[fd00:10:96::a]:80", 0, []string{"the node itself", agrees}},
		{"node", "10.96.0.10:80", 0, []string{"the node itself", agrees}},
		{"10.244.1.99", "svc/shop/empty:lines", 0, []string{"Refused at once", s.refused, agrees}},
		{"outside", "10.96.0.10:81", 0, []string{"Refused at once", agrees}},
		{"outside", "192.0.2.77:22", 0, []string{"Left alone", agrees}},
		{"10.244.1.99", "svc/shop/none", 2, []string{"there is no service shop/none"}},
	} {
		c.explain(t, q)
	}
	c.explainConnection(t)
	if m.iptables != "" && !m.userspace {
		c.explainFirewall(t)
	}
	c.explainAltered(t, s)
}

// explainConnection makes connections, which explain then knows.
func (c *cluster) explainConnection(t *testing.T) {
	t.Helper()
	shopper := c.Host("shopper")
	to := netip.MustParseAddrPort("10.96.0.11:80")
	for proto, state := range map[string]string{"tcp": "ended", "udp": "answered"} {
		a, err := shopper.Ask(t.Context(), netlab.Query{Proto: proto, To: to})
		kit.Need(t, err == nil && a.Outcome == netlab.Answered, "%s: %+v, %v", proto, a, err)
		want := []string{"connection of " + a.From.String() + ": tracked to ", ", " + state, "route to " + a.At.String() + ":", agrees}
		if !c.mode.ipvs { // IPVS keeps to itself which endpoint a client had
			want = append(want, "the client had "+a.At.String()+" before")
		}
		c.explain(t, asked{shopper.IPv4.String(), to.String() + "/" + proto, 0, want})
	}
}

// explainFirewall has rules and policies of others drop what was translated.
func (c *cluster) explainFirewall(t *testing.T) {
	t.Helper()
	q := asked{"outside", "node:30010", 1, []string{
		`rule "-d 10.244.2.11/32 -j DROP" of chain FORWARD of table filter drops packets to 10.244.2.11:8080`, "the node never sends it to 10.244.2.11:8080",
	}}
	c.sh(t, "iptables --wait=60 -I FORWARD -d 10.244.2.11 -j DROP\n")
	c.explain(t, q)
	c.sh(t, "iptables --wait=60 -D FORWARD -d 10.244.2.11 -j DROP\niptables --wait=60 -P FORWARD DROP\n")
	q = asked{"10.244.1.99", "10.96.0.10:80", 1, []string{"the policy of chain FORWARD of table filter drops packets to 10.244.1.11:8080, 10.244.1.12:8080, 10.244.2.11:8080 and 1 more"}}
	c.explain(t, q)
	c.explain(t, asked{"outside", "node:30010", 0, []string{agrees}}) // KUBE-FORWARD accepts what is masqueraded
	c.sh(t, "iptables --wait=60 -P FORWARD ACCEPT\n")
}

// explain asks, and compares the answer.
func (c *cluster) explain(t *testing.T, q asked) {
	t.Helper()
	code, out := c.runExplain(t, q.source, q.destination)
	unwrapped := strings.Join(strings.Fields(out), " ")
	for _, w := range q.want {
		kit.Check(t, code == q.code && strings.Contains(unwrapped, w),
			"explain %s %s: exit %d, want %d; want %q in\n%s", q.source, q.destination, code, q.code, w, out)
	}
}

func (c *cluster) runExplain(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	return c.ask(t, append([]string{"explain"}, args...)...)
}

// ask runs a command of the program on the node.
func (c *cluster) ask(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	return c.exit(t, exec.Command(kubeProxy.Path, args...))
}

// exit runs a command on the node, and returns its exit code.
func (c *cluster) exit(t *testing.T, cmd *exec.Cmd) (code int, out string) {
	t.Helper()
	out, err := program.Run(t, c.Node, cmd)
	kit.Need(t, err == nil || cmd.ProcessState != nil, "%v", err)
	return cmd.ProcessState.ExitCode(), out
}

// explainAltered alters something, and requires that explain names it. The proxy repairs
// it at once the first times, and later once in a second.
func (c *cluster) explainAltered(t *testing.T, s shown) {
	t.Helper()
	var out string
	kit.Until(t, "explain to see what somebody altered", func() bool {
		c.sh(t, s.altered)
		var code int
		code, out = c.runExplain(t, "node", "10.96.0.10:80")
		if code == 1 {
			return true
		}
		kit.Until(t, "it to be repaired", func() bool { return c.sh(t, "if "+strings.TrimSpace(s.repaired)+"; then echo yes; fi\n") != "" })
		return false
	})
	for _, w := range []string{"The node does not do what it should", s.named} {
		kit.Check(t, strings.Contains(out, w), "no %q in\n%s", w, out)
	}
}

func TestExplainForeign(t *testing.T) { withNFTables(t, explainsForeign) }

func TestIPTablesExplainForeign(t *testing.T)  { eachVariant(t, explainsForeign) }
func TestUserspaceExplainForeign(t *testing.T) { withUserspace(t, explainsForeign) }
func TestIPVSExplainForeign(t *testing.T)      { withIPVS(t, explainsForeign) }

// othersRules are rules of others, what a client then gets, and what explain says. The
// Service has one endpoint, on another node.
var othersRules = []struct {
	name, rules string
	// source and to are what is asked. pods and node are clients: shopper and the node.
	source, to string
	outcome    netlab.Outcome
	code       int
	want       []string
	modes      string // the modes for which it counts, "" for all
}{
	{"prerouting drops", "chain first { type filter hook prerouting priority mangle; ip daddr 10.96.0.10 drop; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"handle", "of chain first of table inet other drops packets to 10.96.0.10:80", "look nft -a list chain inet other first"}, ""},
	{"forward rejects by a set", "set bad { type ipv4_addr . inet_service; flags interval; elements = { 10.244.2.0/24 . 8000-8100 } }; chain guard { type filter hook forward priority filter; ct state established accept; ip daddr . tcp dport @bad reject; }",
		"pod", "10.96.0.10:80", netlab.Refused, 1, []string{"of chain guard of table inet other refuses packets to 10.244.2.11:8080"}, "nftables iptables"},
	{"a policy drops", "chain guard { type filter hook forward priority 10; policy drop; ct state established accept; ct status snat accept; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"the policy of chain guard of table inet other drops packets to 10.244.2.11:8080"}, "nftables iptables"},
	{"a chain drops what was translated", "chain sub { iifname \"veth-*\" oifname eth0 drop; }; chain guard { type filter hook forward priority 10; ct status dnat ct direction original jump sub; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain sub of table inet other drops packets to 10.244.2.11:8080"}, "nftables iptables"},
	{"input drops", "chain local { type filter hook input priority 0; iifname != lo meta l4proto tcp ct state new drop; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain local of table inet other drops packets to"}, "userspace ipvs"},
	{"output drops", "chain out { type filter hook output priority 10; tcp dport 8080 drop; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain out of table inet other drops packets to 10.244.2.11:8080"}, "userspace ipvs"},
	{"output drops the node's", "chain out { type filter hook output priority mangle; tcp dport vmap { 80 : drop, 443 : accept }; }",
		"node", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain out of table inet other drops packets to 10.96.0.10:80"}, ""},
	{"postrouting drops", "chain post { type filter hook postrouting priority 10; meta mark != 0x1 ip daddr { 10.244.2.11, 10.244.2.12 } ct direction original drop; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain post of table inet other drops packets to 10.244.2.11:8080"}, ""},
	{"another translates", "chain nat { type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 tcp dport 80 dnat ip to 192.0.2.77:1; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain nat of table inet other gives packets to 10.96.0.10:80 another destination"}, "nftables nft"},
	{"another translates first", "chain nat { type nat hook prerouting priority -110; ip daddr 10.96.0.10 tcp dport 80 dnat ip to 192.0.2.77:1; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain nat of table inet other gives packets to 10.96.0.10:80 another destination"}, ""},
	{"untracked", "chain raw { type filter hook prerouting priority raw; ip daddr 10.96.0.10 notrack; }",
		"pod", "10.96.0.10:80", netlab.TimedOut, 1, []string{"of chain raw of table inet other exempts packets to 10.96.0.10:80 from connection tracking"}, "nftables iptables userspace"},
	{"a limit cannot be told", "chain pre { type filter hook prerouting priority 10; tcp dport 8080 limit rate over 1000/second drop; }",
		"pod", "10.96.0.10:80", netlab.Answered, 0, []string{"as far as the rules of others can be followed", "of chain pre of table inet other may drop it (expression limit)"}, "nftables iptables"},
	{"all is accepted", "chain guard { type filter hook forward priority 10; policy drop; ip saddr 10.244.0.0/16 accept; ip daddr 10.244.0.0/16 accept; }",
		"pod", "10.96.0.10:80", netlab.Answered, 0, []string{agrees, "inet other guard lets it pass"}, "nftables iptables"},
}

// othersCommands are rules of iptables of either variant, in the form of othersRules.
var othersCommands = []struct{ name, rule, stops string }{
	{"addresses", "FORWARD -s 10.244.1.0/24 -d 10.244.2.11 -j DROP", "drops"},
	{"matches", "FORWARD -p tcp -m conntrack --ctstate NEW -m addrtype ! --dst-type LOCAL -m multiport --dports 22,8000:9000 -j REJECT", "refuses"},
	{"interfaces", "FORWARD -i veth-+ -o eth0 -p tcp --dport 8080 -m mark ! --mark 0x1/0x1 -j DROP", "drops"},
}

// explainsForeign has rules of others stop a connection, and requires that explain names
// them, and that they do what it says.
func explainsForeign(t *testing.T, m mode) {
	c := newCluster(t, m)
	c.start(t, app{name: "web", number: 10, plain: true}.on(c.Host("web-3")))
	c.awaitProgrammed(t)
	clients := map[string]*netlab.Host{"pod": c.Host("shopper"), "node": c.Node}
	if m.proxyMode() == "nftables" {
		c.explainIPTables(t)
	}
	for _, r := range othersRules {
		if r.modes != "" && !strings.Contains(r.modes, m.proxyMode()) && (m.iptables == "" || m.userspace || !strings.Contains(r.modes, m.iptables)) {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			nft(t, c.Node, "table inet other { "+r.rules+"; }\n")
			t.Cleanup(func() { c.sh(t, "nft delete table inet other\nconntrack -F 2>/dev/null\n") })
			q := netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort(r.to), Timeout: time.Second}
			a, err := clients[r.source].Ask(t.Context(), q)
			if err != nil || a.Outcome != r.outcome && (r.outcome == netlab.Answered || a.Outcome == netlab.Answered) {
				t.Errorf("%+v, %v; want %s", a, err, r.outcome)
			}
			source := r.source
			if source == "pod" {
				source = c.Host("shopper").IPv4.String()
			}
			c.explain(t, asked{source, r.to, r.code, r.want})
			if testing.Verbose() {
				_, out := c.runExplain(t, source, r.to)
				fmt.Println(out)
			}
		})
	}
}

// explainIPTables has rules of iptables stop a connection.
func (c *cluster) explainIPTables(t *testing.T) {
	t.Helper()
	pod := c.Host("shopper")
	for _, variant := range program.IPTablesVariants {
		for _, r := range othersCommands {
			t.Run(variant+" "+r.name, func(t *testing.T) {
				table := "ip filter"
				if variant == "legacy" {
					table = "filter of iptables-legacy"
				}
				c.explain(t, asked{pod.IPv4.String(), "10.96.0.10:80", 0, []string{agrees}})
				c.sh(t, "iptables-"+variant+" -A "+r.rule+"\n")
				t.Cleanup(func() { c.sh(t, "iptables-"+variant+" -D "+r.rule+"\n") })
				a, err := pod.Ask(t.Context(), netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort("10.96.0.10:80"), Timeout: time.Second})
				kit.Check(t, err == nil && a.Outcome != netlab.Answered, "%+v, %v", a, err)
				c.explain(t, asked{pod.IPv4.String(), "10.96.0.10:80", 1, []string{"of chain FORWARD of table " + table + " " + r.stops + " packets to 10.244.2.11:8080"}})
			})
		}
	}
}

// TestNodeWithoutServiceRoute takes the routes to ClusterIPs from a node. Its processes
// cannot connect then, pods can, and explain and doctor know both.
func TestNodeWithoutServiceRoute(t *testing.T) {
	for _, name := range []string{"nftables", "iptables-nft", "userspace"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, modeNamed(name))
			web, dns := app{name: "web", number: 10}.on(c.webs()...), app{name: "dns", number: 14}.on(c.webs()...)
			c.start(t, web, dns)
			answers := func(h *netlab.Host, want bool) {
				t.Helper()
				for _, f := range service.Families {
					a, err := h.Ask(t.Context(), netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, f)})
					if answered := err == nil && a.Outcome == netlab.Answered; answered != want {
						t.Errorf("%s to %s: %s, %v; want an answer: %t", h.Name, web.at(service.ClusterIP, f), a.Outcome, err, want)
					}
				}
			}
			c4, c6 := web.at(service.ClusterIP, service.IPv4), web.at(service.ClusterIP, service.IPv6)
			c.mends(t, "service-route", func() {
				c.shell(t, "ip route add blackhole 10.96.0.0/16 && ip route add unreachable "+c6.Addr().String()+"/112")
				answers(c.Node, false)
				answers(c.Host("shopper"), true)
				c.explain(t, asked{"node", c4.String(), 1, []string{"the node has no route to " + c4.Addr().String() + ": blackhole", "The node does not do what it should"}})
				c.explain(t, asked{"node", c6.String(), 1, []string{"the node has no route to " + c6.Addr().String() + ": unreachable"}})
				c.explain(t, asked{c.Host("shopper").IPv4.String(), c4.String(), 0, []string{"The node does what it should"}})
				c.shell(t, "ip route del unreachable "+c6.Addr().String()+"/112") // one finding after the other
			})
			answers(c.Node, true)
		})
	}
}

// diff runs kube-proxy diff on the node, with the flags of the proxy, and returns its exit
// code and what it prints.
func (c *cluster) diff(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	cmd := c.command(append(append([]string{"--manifests=" + c.dir}, c.mode.flags...), args...)...)
	cmd.Args = slices.Insert(cmd.Args, 1, "diff")
	code, out = c.exit(t, cmd)
	return code, strings.ReplaceAll(out, "kube-proxy: still reading both states ...\n", "") // on a busy machine
}

func TestDiff(t *testing.T) {
	t.Parallel()
	diffsOf(t, defaultMode(), func(c *cluster) {
		nft(t, c.Node, "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }\n")
	}, "+\t\t\t10.96.0.10 . tcp . 80")
}

func TestIPTablesDiff(t *testing.T) {
	eachVariant(t, func(t *testing.T, m mode) {
		diffsOf(t, m, func(c *cluster) {
			c.shell(t, `iptables -t nat -F $(iptables -t nat -S | grep shop/web:lines | grep -o 'KUBE-SVC-[A-Z0-9]*' | head -n 1)`)
		}, "+-A KUBE-SVC-")
	})
}

func TestUserspaceDiff(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		diffsOf(t, m, func(c *cluster) {
			c.shell(t, "iptables -t nat -F KUBE-PORTALS-CONTAINER")
		}, "+-A KUBE-PORTALS-CONTAINER")
	})
}

func TestIPVSDiff(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		diffsOf(t, m, func(c *cluster) { c.shell(t, "ipvsadm -D -t 10.96.0.10:80") }, "+-A -t 10.96.0.10:80")
	})
}

// diffsOf compares what a node has with what it should have: before the proxy ran, while
// it runs, after endpoints came and went, after somebody altered the rules of a proxy that
// was stopped, and with other manifests. want begins a line of the rules that alter removes.
func diffsOf(t *testing.T, m mode, alter func(*cluster), want string) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10, plain: m.userspace}.on(c.webs()...)
	c.save(t, web, app{name: "sticky", number: 11, sticky: 600, plain: m.userspace}.on(c.webs()...), app{name: "local", number: 12, external: "Local", plain: m.userspace}.on(c.webs()...))
	c.expectDiff(t, "before the proxy", 1, "+")
	out, err := program.Run(t, c.Node, c.command(append([]string{"--manifests=" + c.dir, "--dry-run"}, m.flags...)...))
	kit.Check(t, err == nil && strings.Contains(out, "The node would make "), "--dry-run: %v\n%s", err, out)
	c.expectDiff(t, "after a rehearsal", 1, "+")
	p := c.start(t)
	c.expectDiff(t, "while the proxy runs", 0, "Nothing differs.")
	c.awaitProgrammed(t, app{name: "web", number: 10, plain: m.userspace}.on(c.Host("web-4"), c.Host("web-2")))
	c.save(t, web)
	c.awaitProgrammed(t)
	c.expectDiff(t, "after endpoints came and went", 0, "Nothing differs.")
	if code, out := c.diff(t, "-o=diff"); code != 0 || out != "" {
		t.Errorf("the rules differ: exit %d\n%s", code, out)
	}
	p.Stop(t)
	alter(c)
	c.expectDiff(t, "after somebody altered rules", 1, "changes of the node, IPv4:")
	// Virtual servers have no comments.
	if code, out := c.diff(t, "-o=json"); code != 1 || !strings.HasPrefix(want, "+-A -t ") && !strings.Contains(out, `"shop/web:lines"`) {
		t.Errorf("the Service port is not named: exit %d\n%s", code, out)
	}
	if code, out := c.diff(t, "-o=diff"); code != 1 || !strings.Contains(out, want) {
		t.Errorf("no line %q: exit %d\n%s", want, code, out)
	}
}

func (c *cluster) expectDiff(t *testing.T, when string, code int, want string) {
	t.Helper()
	if got, out := c.diff(t); got != code || !strings.Contains(out, want) {
		t.Errorf("%s: exit %d, want %d with %q:\n%s", when, got, code, want, out)
	}
}

// TestStatus checks the status command.
func TestStatus(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	status := func(t *testing.T, args ...string) (code int, out string) {
		t.Helper()
		return c.ask(t, append([]string{"status"}, args...)...)
	}
	check := func(t *testing.T, code int, words []string, args ...string) {
		t.Helper()
		got, out := status(t, args...)
		missing := ""
		for _, w := range words {
			if !strings.Contains(out, w) {
				missing = w
			}
		}
		kit.Check(t, got == code && missing == "",
			"status %q: exit %d, want %d; missing %q in\n%s", args, got, code, missing, out)
	}

	check(t, 2, []string{"nobody answers at 127.0.0.1:10249", "is the proxy running on this node?"})
	p := c.start(t, app{name: "web", number: 10}.on(c.webs()...), app{name: "empty", number: 11})
	check(t, 0, []string{"on node node-a, mode nftables", ": healthy", "2 Services: 1 with a port that serves no client", "shop/web ", "10.96.0.10", "no endpoints"})
	check(t, 0, []string{"shop/web: programmed", "[fd00:10:96::a]:80", "node:30010"}, "web")
	check(t, 3, []string{"service shop/none is not known here"}, "shop/none")
	check(t, 2, []string{"is the health server of a kube-proxy"}, "--server=127.0.0.1:10256")

	odd := app{name: "odd", number: 12}.yaml(t)
	c.write(t, "odd.yaml", bytes.ReplaceAll(odd, []byte("10.96.0.12"), []byte("127.0.0.1")))
	kit.Until(t, "what is wrong shows", func() bool {
		code, out := status(t, "--failing")
		return code == 1 && strings.Contains(out, "shop/odd") && strings.Contains(out, "clusterIP")
	})
	var d struct {
		OK       bool
		Services []struct{ Name string }
	}
	_, out := status(t, "-o=json", "-n=shop")
	if err := json.Unmarshal([]byte(out), &d); err != nil || d.OK || len(d.Services) != 3 {
		t.Errorf("%v: %+v, want three Services and not ok, in\n%s", err, d, out)
	}

	kit.Must(t, netlab.Pause(p.Pid()))
	check(t, 2, []string{"accepts connections but does not answer in time"}, "--timeout=3s")
	kit.Must(t, syscall.Kill(p.Pid(), syscall.SIGCONT))
	p.Stop(t)
	check(t, 2, []string{"nobody answers at"})
}

// TestStatusWatch follows changes of a Service's endpoints until an interrupt.
func TestStatusWatch(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()[1:]...)
	c.start(t, web)
	p := program.Start(t, c.Node, exec.Command(kubeProxy.Path, "status", "shop/web", "--watch"))
	p.AwaitLog(t, "shop/web: programmed")
	c.save(t, web.on(c.webs()...))
	p.AwaitLog(t, "IPv4: generation ", " is in force")
	p.AwaitLog(t, "shop/web: port lines/tcp IPv4: endpoint 10.244.1.11:8080 is new: ready, used")
	c.save(t, web)
	p.AwaitLog(t, "shop/web: port lines/tcp IPv4: endpoint 10.244.1.11:8080 is gone")
	kit.Must(t, syscall.Kill(p.Pid(), syscall.SIGINT))
	err := p.Wait(t)
	kit.Check(t, err == nil, "an interrupt ends it with %v, want exit code 0", err)
}
