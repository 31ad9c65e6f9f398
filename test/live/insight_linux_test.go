// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

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
	out, err := program.Run(t, s.cluster.Node, cmd)
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	s.Typed(line, steady(strings.ReplaceAll(out, s.dir, shownFolder)), cmd.ProcessState.ExitCode())
}

// changing are parts of an output that differ from run to run, and what stands for them.
// Checks of doctor that find nothing depend on the machine.
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
	c.save(t, web, local)
	p := c.start(t)
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
	s := started("stale")
	c.staleEntry(t, s)
	all = append(all, &s.Session)

	c.set(t, "net/ipv4/ip_forward", "0")
	kit.Until(t, "the proxy to see that the node does not forward", func() bool {
		_, out := c.ask(t, "status")
		return strings.Contains(out, "traffic is blocked")
	})
	shows("status", "kube-proxy status", "kube-proxy status shop/web")
	c.set(t, "net/ipv4/ip_forward", "1")

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
	shows("rule", "kube-proxy diff"+flags, "kube-proxy diff -o diff"+flags)
	kit.Page{Path: insightPage, Rewrite: *updateInsight}.Compare(t, all...)
}

// staleEntry has a client of UDP keep its port while the pod of its Service is replaced.
// The proxy deletes the entry of connection tracking. A program that keeps the tables of
// two machines alike, such as conntrackd, brings it back. The session finds and deletes it.
func (c *cluster) staleEntry(t *testing.T, s *insight) {
	t.Helper()
	c.extendUDPTimeout(t)
	names := app{name: "names", number: 12, plain: true}
	c.save(t, names.on(c.Host("web-3")))
	c.awaitProgrammed(t)
	q := netlab.Query{Proto: "udp", To: netip.MustParseAddrPort("10.96.0.12:80"), From: netip.AddrPortFrom(netip.Addr{}, 5300)}
	client, a, err := c.Host("shopper").Open(t.Context(), q)
	if err != nil || a.Outcome != netlab.Answered {
		t.Fatalf("%s, %v", a.Outcome, err)
	}
	defer client.Close()
	reaches := func(want string) {
		t.Helper()
		if a, err := client.Ask(t.Context()); err != nil || a.Backend != want {
			t.Fatalf("%+v, %v; want an answer of %s", a, err, want)
		}
	}
	reaches("web-3")
	saved := c.sh(t, "conntrack -L -p udp --orig-port-src 5300 -o save 2>/dev/null\n")
	c.save(t, names.on(c.Host("web-1")))
	c.awaitProgrammed(t)
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
