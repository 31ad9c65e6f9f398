// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/packet"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftcommand"
)

// inNamespace runs f in a new network namespace.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	netlab.InNamespace(t, f)
}

func newKernel(t fataler, f service.Family) *Backend {
	b, err := New(f, Options{MasqueradeBit: 14})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return b
}

// runNft runs nft in the thread's network namespace and returns its output.
func runNft(t testing.TB, input string, args ...string) string {
	t.Helper()
	c := exec.Command("nft", args...)
	c.Stdin = bytes.NewBufferString(input)
	out, err := c.CombinedOutput()
	kit.Need(t, err == nil, "nft %v: %v\n%s\n%s", args, err, out, input)
	return string(out)
}

// TestKernelHoldsWhatWasPlanned programs random snapshots one after the other. After each
// one a second backend without state must find nothing to do.
func TestKernelHoldsWhatWasPlanned(t *testing.T) {
	inNamespace(t, func() {
		rapid.Check(t, func(t *rapid.T) {
			w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
			b := newKernel(t, w.Family)
			defer b.driver.(*kernel).close()
			for range 3 {
				want := service.New(1, w.Node(), w.Ports())
				apply(t, b, want)
				fresh := newKernel(t, w.Family)
				generate.RequireNoChange(t, fresh, want)
				_ = fresh.Close()
			}
			if err := b.Cleanup(context.Background()); err != nil {
				t.Fatalf("Cleanup: %v", err)
			}
		})
	})
}

// TestNftReadsTables checks that nft lists the kernel's table, as JSON and as text that
// it loads again. The listing is the same after nft loads the output of Render.
func TestNftReadsTables(t *testing.T) {
	nftcommand.NeedTables(t)
	inNamespace(t, func() {
		rapid.Check(t, func(rt *rapid.T) {
			w := generate.Cluster{T: rt, Family: service.Family(rapid.IntRange(0, 1).Draw(rt, "family"))}
			want := service.New(1, w.Node(), w.Ports())
			b := newKernel(rt, w.Family)
			apply(rt, b, want)
			b.driver.(*kernel).close()
			listing := runNft(t, "", "-s", "list", "table", netlink.FamilyName(w.Family), TableName)
			runNft(t, "", "-j", "list", "ruleset")
			runNft(t, "flush ruleset\n"+listing, "-f", "-")
			text, _ := Render(want, b.options)
			runNft(t, "flush ruleset\n"+text.String(), "-f", "-")
			again := runNft(t, "", "-s", "list", "table", netlink.FamilyName(w.Family), TableName)
			if diff := cmp.Diff(blocks(again), blocks(listing)); diff != "" {
				rt.Fatalf("netlink differs from the text (-text +netlink):\n%s", diff)
			}
			runNft(t, "", "flush", "ruleset")
		})
	})
}

// blocks splits a listing of nft into sets and chains by name. The rules of a chain keep
// their order. The elements of a set are not ordered.
func blocks(listing string) map[string]string {
	found := map[string]string{}
	for block := range strings.SplitSeq(listing, "\n\n") {
		lines := strings.Split(block, "\n")
		for i, l := range lines {
			l = strings.TrimPrefix(strings.TrimSpace(l), "elements = { ")
			lines[i] = strings.TrimRight(l, ", }")
		}
		lines = slices.DeleteFunc(lines, func(l string) bool { return l == "" || strings.HasPrefix(l, "table ") })
		if !strings.HasPrefix(lines[0], "chain ") {
			slices.Sort(lines[1:])
		}
		found[lines[0]] = strings.Join(lines[1:], "\n")
	}
	return found
}

// listed returns our IPv4 table as nft lists it, see blocks.
func listed(t *testing.T) map[string]string {
	t.Helper()
	return blocks(runNft(t, "", "-s", "list", "table", "ip", TableName))
}

// The changes need more elements than fit into one message, both to add and, after a
// restart, to delete.
func TestLargeChanges(t *testing.T) {
	inNamespace(t, func() {
		for _, want := range []*service.Snapshot{servicesWith(100, 60), servicesWith(100, 3), servicesWith(200, 30), servicesWith(0, 0)} {
			b := newKernel(t, service.IPv4)
			apply(t, b, want)
			wantConverged(t, b, want)
			b.driver.(*kernel).close()
		}
	})
}

// Lists come in messages of the largest size that the kernel has. For each message the
// kernel walks from the first element again, see README.md.
func TestListsAreLargeMessages(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		apply(t, b, servicesWith(100, 60))
		s, err := dial()
		kit.Must(t, err)
		defer s.Close()
		r := &reader{Socket: s, nf: unix.NFPROTO_IPV4, name: TableName}
		largest := 0
		fill := func() { r.Text(unix.NFTA_SET_ELEM_LIST_SET, endpoints.name) }
		err = r.request(unix.NFT_MSG_GETSETELEM, unix.NFTA_SET_ELEM_LIST_TABLE, fill, func(body []byte) error {
			largest = max(largest, len(body))
			return nil
		})
		kit.Check(t, err == nil && largest >= 31<<10,
			"the largest message has %d bytes, %v, want almost 32 KiB", largest, err)
	})
}

// A transaction that the kernel rejects in part changes nothing. The error is the
// kernel's.
func TestCommitIsAllOrNothing(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		want := simple(1)
		apply(t, b, want)
		element := func(v verb, last byte) op {
			return op{verb: v, element: element{in: clusterIPs, key: []byte{10, 96, 9, last}}}
		}
		for name, tt := range map[string]struct {
			ops  []op
			want error
		}{
			"a bad one first":  {[]op{element(delElement, 1), element(addElement, 2)}, unix.ENOENT},
			"a bad one last":   {[]op{element(addElement, 1), element(delElement, 2)}, unix.ENOENT},
			"two bad ones":     {[]op{element(delElement, 1), {verb: addSet, set: clusterIPs}}, unix.ENOENT},
			"a set there is":   {[]op{{verb: addSet, set: clusterIPs}}, unix.EEXIST},
			"a chain in use":   {[]op{{verb: flushChain, chain: &chain{name: dispatchChain}}, {verb: delChain, chain: &chain{name: dispatchChain}}}, unix.EBUSY},
			"a way to nowhere": {[]op{element(addElement, 1), {verb: addRules, chain: &chain{name: dispatchChain, rules: []rule{{gotoVerdict("nowhere")}}}}}, unix.ENOENT},
		} {
			err := b.driver.Commit(context.Background(), tt.ops)
			kit.Check(t, errors.Is(err, tt.want), "%s: Commit = %v, want %v", name, err, tt.want)
		}
		wantConverged(t, b, want)
	})
}

// Lost notifications count as a change of our table.
func TestTouchedWhenMessagesAreLost(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		apply(t, b, simple(1))
		small, err := netlink.Dial(unix.NETLINK_NETFILTER, netlink.Options{Buffer: 1})
		if err == nil {
			err = small.Join(unix.NFNLGRP_NFTABLES)
		}
		kit.Must(t, err)
		m := b.driver.(*kernel).monitor
		m.sock.Close()
		m.sock = small
		for range 20 {
			runNft(t, strings.Repeat("add table ip x\ndelete table ip x\n", 100), "-f", "-")
		}
		kit.Check(t, wasTouched(t, b), "not touched, though messages were lost")
		apply(t, b, simple(1))
		kit.Check(t, !wasTouched(t, b), "still touched after a look at the table")
	})
}

// The table is replaced if another process changed a base chain.
func TestForeignBaseChains(t *testing.T) {
	for name, script := range map[string]string{
		"a policy":   "add chain ip kube-services prerouting { policy drop; }",
		"a type":     "delete chain ip kube-services output\nadd chain ip kube-services output { type filter hook output priority -100; }",
		"a priority": "delete chain ip kube-services output\nadd chain ip kube-services output { type nat hook output priority 5; }",
		"a hook":     "delete chain ip kube-services output\nadd chain ip kube-services output { type nat hook prerouting priority -100; }",
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() {
				b := newKernel(t, service.IPv4)
				defer b.driver.(*kernel).close()
				want := simple(1)
				apply(t, b, want)
				before := listed(t)
				runNft(t, "flush chain ip kube-services output\n"+script, "-f", "-")
				apply(t, b, want)
				kit.Same(t, "after the repair (-before +after)", before, listed(t))
				wantConverged(t, b, want)
			})
		})
	}
}

// TestNftAcceptsUnusualNames checks that nft reads the output of Render, and that the
// kernel and nft keep every name unchanged.
func TestNftAcceptsUnusualNames(t *testing.T) {
	nftcommand.NeedTables(t)
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress(), Name: "node-a"}, unusualPorts())
	inNamespace(t, func() {
		text, _ := Render(want, Options{MasqueradeBit: 14})
		runNft(t, text.String(), "-f", "-")
		wantNames(t, "loaded by nft")
		runNft(t, "", "flush", "ruleset")
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		apply(t, b, want)
		wantNames(t, "programmed")
		if p, err := newKernel(t, service.IPv4).Plan(context.Background(), want); err != nil || !p.Empty() {
			t.Errorf("a new backend finds %v, or something to do:\n%s", err, generate.Text(p))
		}
	})
}

func wantNames(t *testing.T, how string) {
	t.Helper()
	listing := runNft(t, "", "list", "table", "ip", TableName)
	for _, p := range unusualPorts() {
		for _, n := range affinityNames(p) {
			kit.Check(t, strings.Contains(listing, " "+n+" {\n"), "%s: the listing lacks %q", how, n)
		}
		c := `comment "` + comment(p.Name) + `" :`
		kit.Check(t, strings.Contains(listing, c), "%s: the listing lacks %s", how, c)
	}
}

// shop returns the snapshot of node-a for the example in the documents.
func shop(t *testing.T) *service.Snapshot {
	t.Helper()
	tracker := track.New(track.Options{NodeName: "node-a", NodePorts: service.AnyAddress(), Pods: service.LocalPods{
		Prefixes: []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00:10:244::/48")},
	}})
	m := source.Manifests{Paths: []string{"../../../docs/examples/shop"}, NodeName: "node-a"}
	kit.Must(t, m.Load(context.Background(), tracker))
	return tracker.Latest()
}

// example is a command of the README and its documented output.
type example struct {
	command string
	output  []string
}

// examples returns the indented lines that begin with a prompt, and the lines after each.
func examples(readme string) []example {
	var found []example
	open := false
	for line := range strings.SplitSeq(readme, "\n") {
		text, indented := strings.CutPrefix(line, "    ")
		command, prompt := strings.CutPrefix(text, "$ ")
		switch {
		case !indented:
			open = false
		case prompt:
			found, open = append(found, example{command: command}), true
		case open:
			last := &found[len(found)-1]
			last.output = append(last.output, text)
		}
	}
	return found
}

// TestReadme runs the commands of the README in a namespace with the example.
func TestReadme(t *testing.T) {
	text := kit.ReadFile(t, "README.md")
	list, want := examples(string(text)), shop(t)
	kit.Need(t, len(list) >= 10, "%d examples found, want at least 10", len(list))
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f)
			defer b.driver.(*kernel).close()
			apply(t, b, want)
		}
		for _, e := range list {
			out, err := exec.Command("sh", "-c", e.command).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", e.command, err, out)
				continue
			}
			kit.Same(t, fmt.Sprintf("%s (-README +nft)", e.command), plain(e.output), plain(strings.Split(string(out), "\n")))
		}
	})
}

// plain removes differences that do not matter: the order of elements, their separators
// and indentation, and empty lines.
func plain(lines []string) []string {
	var out []string
	for l := range strings.SplitSeq(strings.Join(lines, ",\n"), ",") {
		l = strings.TrimPrefix(strings.Join(strings.Fields(l), " "), "elements = { ")
		if l = strings.TrimRight(l, "} "); l != "" {
			out = append(out, l)
		}
	}
	slices.Sort(out)
	return out
}

// words are what nft lists in other words than it reads, as far as our rules have it.
var words = strings.NewReplacer(
	"priority dstnat;", "priority -100;", "priority srcnat;", "priority 100;", "priority filter;", "priority 0;",
)

// listedLines returns the lines of a listing in one form, sorted: nft 1.0.6 orders elements
// by the bytes of their keys, the last one first (nftables: src/mergesort.c,
// concat_expr_msort_value).
func listedLines(text string) []string {
	text = regexp.MustCompile(`\s+`).ReplaceAllString(words.Replace(text), " ")
	text = strings.ReplaceAll(text, ", }", " }")
	text = strings.ReplaceAll(text, "meta l4proto tcp reject with tcp reset", "reject with tcp reset")
	lines := regexp.MustCompile(`([{};,]) `).Split(text, -1)
	slices.Sort(lines)
	return lines
}

// TestRenderIsWhatNftLists checks that what render prints, what is read back and what nft
// lists have the same lines.
func TestRenderIsWhatNftLists(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		want := servicesWith(20, 3)
		apply(t, b, want)
		held, wanted, err := b.ReadBack(t.Context(), want)
		diff := cmp.Diff(wanted.String(), held.String())
		kit.Need(t, err == nil && diff == "", "read back: %v (-wanted +held):\n%s", err, diff)
		rendered, _ := Render(want, b.options)
		if ours, _, _ := strings.Cut(rendered.String(), "table ip6"); ours != held.String() {
			t.Errorf("render prints something else than is read back:\n%s", cmp.Diff(ours, held.String()))
		}
		kit.Same(t, "nft lists something else than is read back (-held +nft)", listedLines(held.String()), listedLines(runNft(t, "", "-s", "list", "table", "ip", TableName)))
	})
}

// TestProbe checks that this kernel passes, and that the probe leaves nothing behind and
// does not change a table in use.
// The kernel finds a single element of each sort of set.
func TestElement(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f)
			defer b.driver.(*kernel).close()
			a := map[service.Family][]string{service.IPv4: {"10.96.0.1", "10.0.0.0/8", "10.9.9.9", "11.0.0.1"}, service.IPv6: {"fd01::1", "fd02::/64", "fd02::9", "fd03::1"}}[f]
			at, within, outside := netip.MustParseAddr(a[0]), netip.MustParseAddr(a[2]), netip.MustParseAddr(a[3])
			p := &service.Port{Family: f, Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.UDP}, Affinity: time.Hour,
				Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: at, Port: 80, Sources: []netip.Prefix{netip.MustParsePrefix(a[1])}}},
				Cluster:   []service.Endpoint{{Addr: netip.AddrPortFrom(within, 8080)}, {Addr: netip.AddrPortFrom(outside, 8080)}}}
			apply(t, b, service.New(1, &service.Node{}, []*service.Port{p}))
			key := appendPort(appendProto(at.AsSlice(), service.UDP), 80)
			clients := clientSet(p, service.PolicyCluster, 8080)
			kit.Must(t, b.driver.Commit(context.Background(), []op{{verb: addElement, element: element{in: clients, key: within.AsSlice(), value: within.AsSlice()}}}))
			for _, x := range []struct {
				in    *set
				key   []byte
				value string // "-" for no element
			}{
				{services, key, ""}, {services, appendPort(appendProto(at.AsSlice(), service.TCP), 80), "-"},
				{sources, appendAddr(slices.Clone(key), within), ""}, {sources, appendAddr(slices.Clone(key), outside), "-"},
				{choiceSet(p, service.PolicyCluster), appendSlot(nil, 0), string(appendPort(within.AsSlice(), 8080))}, {choiceSet(p, service.PolicyCluster), appendSlot(nil, 2), "-"},
				{clusterIPs, at.AsSlice(), ""}, {hairpin, append(within.AsSlice(), within.AsSlice()...), ""}, {hairpin, append(within.AsSlice(), outside.AsSlice()...), "-"},
				{clients, within.AsSlice(), string(within.AsSlice())}, {clients, outside.AsSlice(), "-"}, {&set{name: "none"}, at.AsSlice(), "-"},
			} {
				e, err := b.driver.Element(x.in, x.key)
				kit.Check(t, err == nil && (e == nil) == (x.value == "-") && (e == nil || string(e.value) == x.value),
					"%s: %x in %s is %+v, error %v, want value %x", f, x.key, x.in.name, e, err, x.value)
			}
			e, _ := b.driver.Element(services, key)
			kit.Check(t, e != nil && e.comment == comment(p.Name) && e.verdict.code == verdictGoto,
				"%s: the element of services is %+v", f, e)
			from := route.Conn{Protocol: service.UDP, From: within, To: netip.AddrPortFrom(at, 80), Interface: "eth0"}
			w, err := b.Trace(context.Background(), service.New(1, &service.Node{}, []*service.Port{p}), from, func(netip.Addr) bool { return false })
			if want := netip.AddrPortFrom(within, 8080); err != nil || w.Remembered != want || len(w.Faults) > 0 {
				t.Errorf("%s: walk %+v, error %v, want %s as the endpoint that the client had", f, w, err, want)
			}
		}
	})
}

// The kernel holds the expressions that package packet evaluates for our rules.
func TestKernelHoldsExpressions(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f)
			defer b.driver.(*kernel).close()
			b.options.DropInvalid, b.options.CountConnections = true, true
			prefix := map[service.Family]string{service.IPv4: "10.244.0.0/16", service.IPv6: "fd00::/64"}[f]
			node := &service.Node{NodePorts: service.AnyAddress()}
			node.Pods.Prefixes = []netip.Prefix{netip.MustParsePrefix(prefix)}
			p := &service.Port{Family: f, Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Affinity: time.Hour,
				Frontends: []service.Frontend{{Kind: service.NodePort, Port: 30080}}, Cluster: []service.Endpoint{{Addr: netip.AddrPortFrom(netip.MustParsePrefix(prefix).Addr().Next(), 80)}}}
			want := service.New(1, node, []*service.Port{p})
			apply(t, b, want)
			for name, c := range b.knownChains(&table{}, want) {
				has, err := b.driver.Rules(name)
				kit.Must(t, err)
				wanted := compile(c.rules, f)
				for i := range wanted {
					wanted[i].Text = c.rules[i].fingerprint(f)
				}
				kit.Same(t, fmt.Sprintf("%s: chain %s (-encoded +kernel)", f, name), spelled(wanted), spelled(has))
			}
		}
	})
}

// spelled returns rules as text. What only records something is not told apart.
func spelled(rules []packet.Rule) (all []string) {
	for _, r := range rules {
		text := fmt.Sprintf("%x", r.Text)
		for _, x := range r.Expressions {
			switch x.(type) {
			case recordClient, countConnection, counter, packet.Passive, packet.Chance:
				text += " records"
			default:
				text += fmt.Sprintf(" %T%+v", x, x)
			}
		}
		all = append(all, text)
	}
	return all
}

// Rules of others in our chains are followed as the kernel has them.
func TestTraceForeignRules(t *testing.T) {
	inNamespace(t, func() {
		p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP},
			Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}},
			Cluster:   []service.Endpoint{{Addr: addrPort("10.244.1.1:80")}, {Addr: addrPort("10.244.1.2:80")}, {Addr: addrPort("10.244.1.3:80")}}}
		want := service.New(1, &service.Node{}, []*service.Port{p})
		c := route.Conn{Protocol: service.TCP, From: netip.MustParseAddr("10.9.9.9"), To: addrPort("10.96.0.1:80"), Interface: "eth0"}
		for _, x := range []struct {
			rule   string
			does   route.Action
			hop    string // the last one
			others int    // faults
		}{
			{"insert rule ip kube-services dispatch tcp dport 80 drop", route.Drop, `^drop, by the rule with handle \d+ of chain dispatch of table ip kube-services$`, 1},
			{"insert rule ip kube-services dispatch tcp dport 80 reject", route.Reject, `^reject, by the rule with handle`, 1},
			{"insert rule ip kube-services dispatch tcp dport 80 dnat to 10.1.1.1:81", route.Forward, `^translate, by the rule with handle`, 1},
			{"insert rule ip kube-services dispatch tcp dport 80 dnat to 10.1.1.1", route.Forward, `^translate, by the rule with handle`, 1},
			{"insert rule ip kube-services dispatch tcp dport 80 redirect to :81", route.Pass, `^translate, by the rule with handle`, 1},
			{"insert rule ip kube-services pick-4 ip saddr 10.9.9.8 drop", route.Forward, "^one of 3 endpoints", 1},
			{"insert rule ip kube-services pick-4 tcp dport { 80, 81 } counter", route.Forward, "^one of 3 endpoints", 1},
			{"insert rule ip kube-services pick-4 ip daddr 10.96.0.1 return", route.Pass, "^choose an endpoint at random$", 1},
			{"flush chain ip kube-services pick-4", route.Pass, "^choose an endpoint at random$", 1},
			{"flush set ip kube-services cluster-ips", route.Forward, "^one of 3 endpoints", 0},
		} {
			b := newKernel(t, service.IPv4)
			apply(t, b, want)
			runNft(t, "", strings.Fields(x.rule)...)
			w, err := b.Trace(context.Background(), want, c, func(netip.Addr) bool { return false })
			kit.Must(t, err)
			_, unset := w.Targets[addrPort("10.1.1.1:0")]
			if hop := w.Hops[len(w.Hops)-1].Does; unset || w.Action != x.does || !regexp.MustCompile(x.hop).MatchString(hop) || len(w.Faults) != x.others {
				t.Errorf("%s: %v, last hop %q, faults %q", x.rule, w.Action, hop, w.Faults)
			}
			runNft(t, "", "delete", "table", "ip", "kube-services")
			b.driver.(*kernel).close()
		}
	})
}

func TestProbe(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			err := Probe(f)
			kit.Check(t, err == nil, "Probe(%s) = %v", f, err)
			for _, n := range kernelFeatures(f) {
				err := dryRun(t, f, n.ops)
				kit.Check(t, err == nil, "%s: %s: %v", f, n.name, err)
			}
		}
		got := runNft(t, "", "list", "ruleset")
		kit.Check(t, got == "", "after the probe:\n%s", got)
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		apply(t, b, service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil))
		before := runNft(t, "", "list", "ruleset")
		err := Probe(service.IPv4)
		kit.Check(t, err == nil, "beside our table: %v", err)
		after := runNft(t, "", "list", "ruleset")
		kit.Check(t, after == before, "the probe changed the rules:\n%s", after)
		if touched, err := b.driver.Touched(context.Background()); touched || err != nil {
			t.Errorf("the probe was noticed as a change: %v, %v", touched, err)
		}
		err = dryRun(t, service.IPv4, []op{{verb: addChain, chain: &chain{name: strings.Repeat("x", 500)}}})
		kit.Check(t, err != nil, "a rehearsal accepts what the kernel cannot hold")
	})
}

func dryRun(t *testing.T, f service.Family, ops []op) error {
	t.Helper()
	s, err := dial()
	kit.Must(t, err)
	defer s.Close()
	e := newEncoder(f)
	e.name = probeTable
	batch, err := e.dryRun(append([]op{{verb: addTable}}, ops...))
	kit.Must(t, err)
	return s.Transact(batch)
}

// The error names the missing capability.
func TestProbeWithoutCapability(t *testing.T) {
	inNamespace(t, func() {
		// The thread ends with the test, and so does the loss of capabilities.
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		kit.Must(t, unix.Capset(&header, &none[0]))
		err := Probe(service.IPv4)
		kit.Check(t, err != nil && strings.Contains(err.Error(), "the right CAP_NET_ADMIN is needed"),
			"Probe = %v, want one that names CAP_NET_ADMIN", err)
	})
}

// TestNewWithoutDescriptors has the sockets of a Backend fail one after the other. The error
// says why, and no descriptor stays open.
func TestNewWithoutDescriptors(t *testing.T) {
	inNamespace(t, func() {
		next := func() int {
			fd, err := unix.Dup(0)
			kit.Must(t, err)
			_ = unix.Close(fd)
			return fd
		}
		free := next()
		var limit unix.Rlimit
		kit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
		defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }()
		for sockets := range 3 {
			lower := limit
			lower.Cur = uint64(free + sockets)
			kit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &lower))
			_, err := New(service.IPv4, Options{MasqueradeBit: 14})
			e := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
			kit.Check(t, e == nil && errors.Is(err, unix.EMFILE), "New with %d sockets = %v, want %v (%v)", sockets, err, unix.EMFILE, e)
			now := next()
			kit.Need(t, now == free, "New with %d sockets leaves descriptor %d open", sockets, free)
		}
	})
}

// onLoopback is a node with an SCTP NodePort 30090 and a TCP NodePort 30080, which answer
// at the addresses in nodePorts.
func onLoopback(f service.Family, nodePorts ...string) *service.Snapshot {
	node := &service.Node{Name: "node-a"}
	for _, p := range nodePorts {
		node.NodePorts = append(node.NodePorts, prefix(p))
	}
	var ports []*service.Port
	for protocol, port := range map[service.Protocol]uint16{service.SCTP: 30090, service.TCP: 30080} {
		ports = append(ports, &service.Port{
			Name: service.PortName{Namespace: "shop", Name: "web", Port: protocol.String(), Protocol: protocol}, Family: f,
			Frontends: []service.Frontend{{Kind: service.NodePort, Port: port}},
			Cluster:   []service.Endpoint{{Addr: addrPort([]string{"10.244.1.1:8080", "[fd00:10:244::1]:8080"}[f])}},
		})
	}
	return service.New(1, node, ports)
}

// TestUnrelayed sends SCTP packets to NodePorts of the loopback addresses. Those packets
// are refused and counted, also by the next process, and others are left alone.
func TestUnrelayed(t *testing.T) {
	inNamespace(t, func() {
		out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput()
		kit.Need(t, err == nil, "lo: %v\n%s", err, out)
		for _, f := range service.Families {
			on, off := onLoopback(f, "127.0.0.0/8", "::1/128"), onLoopback(f, "127.0.0.2/32")
			count := func(want uint64) {
				t.Helper()
				n, err := Unrelayed(f, Options{})
				kit.Check(t, n == want && err == nil, "%s: %d packets counted, %v, want %d", f, n, err, want)
			}
			send := func(port uint16, want bool) {
				t.Helper()
				refused, err := netlab.RefusesSCTP(netip.AddrPortFrom(service.Localhost(f), port))
				kit.Check(t, refused == want && err == nil,
					"%s, port %d: refused %t, %v, want %t", f, port, refused, err, want)
			}
			count(0)
			b := newKernel(t, f)
			defer b.Close()
			apply(t, b, on)
			send(30090, true)
			send(30090, true)
			send(30080, false)
			send(30091, false)
			count(2)
			next := newKernel(t, f)
			defer next.Close()
			apply(t, next, on)
			count(2)
			traceUnrelayed(t, next, on)
			apply(t, next, off)
			send(30090, false)
			count(0)
			traceUnrelayed(t, next, off)
		}
	})
}

// traceUnrelayed follows such a packet through the table. Rules for another node are
// named.
func traceUnrelayed(t *testing.T, b *Backend, want *service.Snapshot) {
	t.Helper()
	at := service.Localhost(b.family)
	c := route.Conn{Protocol: service.SCTP, From: at, To: netip.AddrPortFrom(at, 30090), ToNode: true}
	w, err := b.Trace(context.Background(), want, c, netip.Addr.IsLoopback)
	kit.Must(t, err)
	x := explain.Model{Tracker: track.New(track.Options{}), Snapshot: want}.Explain(c)
	x.Compare(w.Path())
	if on := want.Node.LocalhostNodePorts(b.family); x.Verdict != explain.Agree || (w.Action == route.Reject) != on || on != strings.Contains(w.ByDesign, "does not relay sctp") {
		t.Errorf("%s, enabled %t: %s, by design %q, %s %q", b.family, on, w.Action, w.ByDesign, x.Verdict, x.Differences)
	}
	w, err = b.Trace(context.Background(), onLoopback(b.family), c, netip.Addr.IsLoopback)
	kit.Check(t, err == nil && (len(w.Faults) > 0) == want.Node.LocalhostNodePorts(b.family),
		"%s: faults %q, %v, where nodePortAddresses lacks loopback addresses", b.family, w.Faults, err)
}
