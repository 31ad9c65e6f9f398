// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// alone runs f with the ipsets of a network namespace of its own.
func alone(t *testing.T, f func(k *Kernel)) {
	t.Helper()
	for _, command := range []string{"ipset", "iptables"} {
		if _, err := exec.LookPath(command); err != nil {
			t.Skipf("needs the command: %v", err)
		}
	}
	netlab.InNamespace(t, func() {
		k, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		if err := k.Create(Set{Name: "probe", Type: HashIP}); errors.Is(err, errors.ErrUnsupported) {
			t.Skip(err)
		}
		kit.Must(t, k.Destroy("probe"))
		f(k)
	})
}

// run runs a command in this thread's namespace and returns its output.
func run(t *testing.T, input, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Stdin = strings.NewReader(input)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// wantList checks that the kernel lists entries, in this order.
func wantList(t *testing.T, k *Kernel, s Set, want ...Entry) {
	t.Helper()
	got, err := k.List(s)
	kit.Must(t, err)
	if diff := cmp.Diff(want, got, cmp.Comparer(same)); diff != "" {
		t.Errorf("ipset %s (-want +got):\n%s", s.Name, diff)
	}
}

func same(a, b Entry) bool { return a == b }

// members returns some members that a set of this type and family can hold, sorted.
func members(s Set) []Member {
	addrs, nets := []string{"10.0.0.1", "192.0.2.1"}, []string{"0.0.0.0/1", "10.0.0.0/8", "10.0.0.1/32", "128.0.0.0/1"}
	if s.Family == service.IPv6 {
		addrs = []string{"::102:304", "2001:db8::1"}
		nets = []string{"::/1", "2001:db8::/32", "2001:db8::1/128", "8000::/1"}
	}
	var all []Member
	for _, a := range addrs {
		all = append(all, withPorts(s, netip.MustParseAddr(a), nets)...)
	}
	for i := range all {
		all[i].Comment = fmt.Sprintf("default/web:http %d", i)
	}
	all[0].Comment = ""
	return all
}

func withPorts(s Set, a netip.Addr, nets []string) []Member {
	if s.Type == HashIP {
		return []Member{{Entry: Entry{Addr: a}}}
	}
	var all []Member
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		e := Entry{Addr: a, Protocol: p, Port: 8080}
		if s.Type == HashIPPort {
			all = append(all, Member{Entry: e})
			continue
		}
		for _, n := range nets {
			e.Net = netip.MustParsePrefix(n)
			all = append(all, Member{Entry: e})
		}
	}
	return all
}

func entries(members []Member) []Entry {
	var all []Entry
	for _, m := range members {
		all = append(all, m.Entry)
	}
	return all
}

// each runs f with an empty set of each type and family.
func each(t *testing.T, f func(t *testing.T, k *Kernel, s Set)) {
	for _, typ := range []Type{HashIP, HashIPPort, HashIPPortNet} {
		for _, family := range []service.Family{service.IPv4, service.IPv6} {
			t.Run(fmt.Sprint(typ, family), func(t *testing.T) {
				alone(t, func(k *Kernel) {
					s := Set{"KUBE-SOME-SET", typ, family}
					kit.Must(t, k.Create(s))
					f(t, k, s)
				})
			})
		}
	}
}

// TestElements checks that a set contains what was added and not deleted, and that
// adding an existing or deleting a missing element is no error.
func TestElements(t *testing.T) {
	each(t, func(t *testing.T, k *Kernel, s Set) {
		wantList(t, k, s)
		all := members(s)
		last := len(all) - 1
		kit.Must(t, k.Add(s, all[1:]))
		kit.Must(t, k.Add(s, all), k.Create(s))
		wantList(t, k, s, entries(all)...)
		kit.Must(t, k.Del(s, entries(all[last:])))
		kit.Must(t, k.Del(s, entries(all[last:])))
		wantList(t, k, s, entries(all[:last])...)
		kit.Must(t, k.Add(s, nil), k.Del(s, nil), k.Destroy(s.Name), k.Destroy(s.Name))
		if _, err := k.List(s); !errors.Is(err, ErrMissing) {
			t.Errorf("list of no set: %v", err)
		}
	})
}

// vary matches the settings that ipset chooses.
var vary = regexp.MustCompile(` (hashsize|bucketsize|initval) \w+`)

// lines returns the sorted lines of a text without what varies.
func lines(text string) []string {
	return slices.Sorted(strings.Lines(vary.ReplaceAllString(text, "")))
}

// TestTextIsOfIpset checks that ipset restores the text, and saves the same text as for
// the set itself.
func TestTextIsOfIpset(t *testing.T) {
	each(t, func(t *testing.T, k *Kernel, s Set) {
		all := members(s)
		all[1].Comment = `a "quoted" word\`
		kit.Must(t, k.Add(s, all))
		var text strings.Builder
		s.Write(all, func(line, _ string) { text.WriteString(line) })
		if diff := cmp.Diff(lines(run(t, "", "ipset", "save", s.Name)), lines(text.String())); diff != "" {
			t.Errorf("text (-ipset +ours):\n%s", diff)
		}
		kit.Must(t, k.Destroy(s.Name))
		run(t, text.String(), "ipset", "restore")
		if diff := cmp.Diff(lines(text.String()), lines(run(t, "", "ipset", "save"))); diff != "" {
			t.Errorf("restored (-ours +ipset):\n%s", diff)
		}
		kit.Must(t, k.Create(s))
		wantList(t, k, s, entries(all)...)
	})
}

// TestWholeIsTwoHalves checks that a set holds the two halves of 0.0.0.0/0.
func TestWholeIsTwoHalves(t *testing.T) {
	alone(t, func(k *Kernel) {
		for f, whole := range map[service.Family]string{service.IPv4: "0.0.0.0/0", service.IPv6: "::/0"} {
			s := Set{"SET-" + f.String(), HashIPPortNet, f}
			m := members(s)[0]
			m.Net = netip.MustParsePrefix(whole)
			kit.Must(t, k.Create(s), k.Add(s, []Member{m}))
			low, high := m.Entry, m.Entry
			low.Net, high.Net = Halves(m.Net)[0], Halves(m.Net)[1]
			wantList(t, k, s, low, high)
			kit.Must(t, k.Del(s, []Entry{m.Entry}))
			wantList(t, k, s)
		}
	})
}

// TestCommentsAreRenewed checks that an existing element gets the comment it is added
// with.
func TestCommentsAreRenewed(t *testing.T) {
	alone(t, func(k *Kernel) {
		s := Set{"A", HashIP, service.IPv4}
		m := members(s)[1]
		kit.Must(t, k.Create(s))
		for _, m.Comment = range []string{"one", strings.Repeat("x", 300), ""} {
			kit.Must(t, k.Add(s, []Member{m}))
			want := "add A " + m.Addr.String()
			if m.Comment != "" {
				want += fmt.Sprintf(" comment %q", m.Comment[:min(len(m.Comment), 255)])
			}
			if got := run(t, "", "ipset", "save"); !strings.Contains(got, want+"\n") {
				t.Errorf("saved\n%s\nwant %s", got, want)
			}
			got, err := k.Members(s)
			kit.Must(t, err)
			if len(got) != 1 || got[0].Comment != Comment(m.Comment) {
				t.Errorf("listed %v, want comment %q", got, Comment(m.Comment))
			}
		}
	})
}

// TestSetWithoutComments adds elements to a foreign set without comments.
func TestSetWithoutComments(t *testing.T) {
	alone(t, func(k *Kernel) {
		s := Set{"A", HashIP, service.IPv4}
		run(t, "", "ipset", "create", s.Name, string(s.Type))
		kit.Must(t, k.Create(s), k.Add(s, members(s)))
		wantList(t, k, s, entries(members(s))...)
	})
}

// TestManyElements adds more elements than fit into one message.
func TestManyElements(t *testing.T) {
	each(t, func(t *testing.T, k *Kernel, s Set) {
		all := many(s, 20000)
		kit.Must(t, k.Add(s, all))
		wantList(t, k, s, entries(all)...)
		kit.Must(t, k.Del(s, entries(all[:19000])))
		wantList(t, k, s, entries(all[19000:])...)
	})
}

// many returns n members, sorted, with comments of all sizes.
func many(s Set, n int) []Member {
	m := members(s)[0]
	all := make([]Member, n)
	for i := range all {
		m.Addr = m.Addr.Next()
		m.Comment = strings.Repeat("x", i%300)
		all[i] = m
	}
	return all
}

// TestHeaders checks that foreign sets are listed and otherwise left alone.
func TestHeaders(t *testing.T) {
	alone(t, func(k *Kernel) {
		run(t, "", "ipset", "create", "ports", "bitmap:port", "range", "0-100")
		run(t, "", "ipset", "add", "ports", "80")
		run(t, "", "ipset", "create", "sets", "list:set")
		run(t, "", "ipset", "add", "sets", "ports")
		before := run(t, "", "ipset", "save")
		s := Set{"A", HashIPPort, service.IPv6}
		// So many that the kernel would list the set in several parts.
		kit.Must(t, k.Create(s), k.Add(s, many(s, 5000)))
		got, err := k.Headers()
		kit.Must(t, err)
		slices.SortFunc(got, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
		want := []Header{
			{"A", HashIPPort, service.IPv6, 5000, 0, false},
			{"ports", "bitmap:port", service.IPv4, 1, 1, false},
			{"sets", "list:set", service.IPv4, 1, 0, false},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("heads (-want +got):\n%s", diff)
		}
		// Without a name, the kernel would destroy all sets.
		kit.Must(t, k.Destroy(""), k.Destroy("A"))
		if after := run(t, "", "ipset", "save"); after != before {
			t.Errorf("others' sets were\n%s\nand are\n%s", before, after)
		}
	})
}
