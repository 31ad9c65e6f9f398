// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"encoding/binary"
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

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
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
		kit.Must(t, err)
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
	kit.Need(t, err == nil, "%s %v: %v\n%s", name, args, err, out)
	return string(out)
}

// wantList checks that the kernel lists entries, in this order.
func wantList(t *testing.T, k *Kernel, s Set, want ...Entry) {
	t.Helper()
	got, err := k.List(s)
	kit.Must(t, err)
	kit.Same(t, fmt.Sprintf("ipset %s (-want +got)", s.Name), want, got, cmp.Comparer(same))
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
		_, err := k.List(s)
		kit.Check(t, errors.Is(err, ErrMissing), "list of no set: %v", err)
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
		kit.Same(t, "text (-ipset +ours)", lines(run(t, "", "ipset", "save", s.Name)), lines(text.String()))
		kit.Must(t, k.Destroy(s.Name))
		run(t, text.String(), "ipset", "restore")
		kit.Same(t, "restored (-ours +ipset)", lines(text.String()), lines(run(t, "", "ipset", "save")))
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
		kit.Same(t, "heads (-want +got)", want, got)
		// Without a name, the kernel would destroy all sets.
		kit.Must(t, k.Destroy(""), k.Destroy("A"))
		after := run(t, "", "ipset", "save")
		kit.Check(t, after == before, "others' sets were\n%s\nand are\n%s", before, after)
	})
}

// TestAlteredSets checks that a set that another process made in the place of ours is
// recognized, and that Create replaces it while a rule refers to it.
func TestAlteredSets(t *testing.T) {
	for name, options := range map[string]string{
		"size":     "comment maxelem 7",
		"timeout":  "comment maxelem 1048576 timeout 600",
		"comments": "maxelem 1048576",
		"counters": "comment counters maxelem 1048576",
		"evicts":   "comment forceadd maxelem 1048576",
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, func(k *Kernel) {
				s := Set{"A", HashIPPort, service.IPv4}
				kit.Must(t, k.Create(s), k.Add(s, members(s)))
				wantAltered(t, k, false)
				setRule(t, "-A")
				run(t, "", "ipset", append([]string{"create", "B", "hash:ip,port"}, strings.Fields(options)...)...)
				run(t, "", "ipset", "swap", "A", "B")
				run(t, "", "ipset", "destroy", "B")
				wantAltered(t, k, true)
				kit.Must(t, k.Create(s))
				wantAltered(t, k, false)
				kit.Must(t, k.Add(s, members(s)), k.Create(s))
				wantList(t, k, s, entries(members(s))...)
				setRule(t, "-D")
			})
		})
	}
}

// wantAltered checks that there is one set, altered or not.
func wantAltered(t *testing.T, k *Kernel, want bool) {
	t.Helper()
	heads, err := k.Headers()
	kit.Must(t, err)
	kit.Check(t, len(heads) == 1 && heads[0].Altered == want, "heads %+v, want one, altered %t", heads, want)
}

// TestSetsAsMade checks that a set made by Create is not altered, for any type and
// family.
func TestSetsAsMade(t *testing.T) {
	for _, kind := range []Type{HashIP, HashIPPort, HashIPPortNet} {
		for _, f := range service.Families {
			alone(t, func(k *Kernel) {
				s := Set{"A", kind, f}
				kit.Must(t, k.Create(s), k.Add(s, members(s)))
				wantAltered(t, k, false)
			})
		}
	}
}

// wantError checks the text of an error, and its kind unless that is nil.
func wantError(t *testing.T, err error, text string, kind error) {
	t.Helper()
	kit.Check(t, err != nil && strings.Contains(err.Error(), text) && (kind == nil || errors.Is(err, kind)),
		"error %v\nwant %s, of kind %v", err, text, kind)
}

// TestOtherSet checks that every operation on a set of another type or family reports
// that, and leaves the set as it is.
func TestOtherSet(t *testing.T) {
	there := Set{"A", HashIPPort, service.IPv4}
	for _, s := range []Set{{"A", HashIP, service.IPv4}, {"A", HashIPPortNet, service.IPv4}, {"A", HashIPPort, service.IPv6}} {
		t.Run(fmt.Sprint(s.Type, s.Family), func(t *testing.T) {
			alone(t, func(k *Kernel) {
				kit.Must(t, k.Create(there), k.Add(there, members(there)))
				text := fmt.Sprintf("it is hash:ip,port for IPv4, want %s for %s", s.Type, s.Family)
				_, err := k.List(s)
				wantError(t, err, "list ipset A: ", ErrTypeMismatch)
				wantError(t, err, text, ErrTypeMismatch)
				wantError(t, k.Create(s), "create ipset A: ", ErrTypeMismatch)
				wantError(t, k.Create(s), text, ErrTypeMismatch)
				wantError(t, k.Add(s, members(s)), "add to ipset A: ", ErrTypeMismatch)
				wantError(t, k.Del(s, entries(members(s))), "delete from ipset A: ", ErrTypeMismatch)
				wantList(t, k, there, entries(members(there))...)
			})
		})
	}
}

func TestMissingSet(t *testing.T) {
	alone(t, func(k *Kernel) {
		s := Set{"A", HashIP, service.IPv4}
		_, err := k.List(s)
		wantError(t, err, "list ipset A: no such ipset", ErrMissing)
		wantError(t, k.Add(s, members(s)), "add to ipset A: no such ipset", ErrMissing)
		wantError(t, k.Del(s, entries(members(s))), "delete from ipset A: no such ipset", ErrMissing)
	})
}

func TestSetThatCannotBe(t *testing.T) {
	alone(t, func(k *Kernel) {
		wantError(t, k.Create(Set{"A", "bitmap:port", service.IPv4}), "create ipset A: type bitmap:port", errors.ErrUnsupported)
		longest := strings.Repeat("x", 31)
		wantError(t, k.Create(Set{longest + "x", HashIP, service.IPv4}), "32 bytes", nil)
		wantError(t, k.Create(Set{"", HashIP, service.IPv4}), "0 bytes", nil)
		kit.Must(t, k.Create(Set{longest, HashIP, service.IPv4}), k.Destroy(longest))
	})
}

// TestElementThatCannotBe checks that the error of a batch names the element, and that
// the elements before it are in the set.
func TestElementThatCannotBe(t *testing.T) {
	good := Entry{netip.MustParseAddr("192.0.2.1"), service.TCP, 80, netip.MustParsePrefix("192.0.2.0/24")}
	for name, tt := range map[string]struct {
		spoil func(e *Entry)
		want  string
	}{
		"family of address":  {func(e *Entry) { e.Addr = netip.IPv6Loopback() }, "::1,tcp:80,192.0.2.0/24: it does not fit the type or family of the set"},
		"family of prefix":   {func(e *Entry) { e.Net = netip.MustParsePrefix("::1/128") }, "192.0.2.1,tcp:80,::1: it does not fit the type or family of the set"},
		"no address":         {func(e *Entry) { e.Addr = netip.Addr{} }, "does not fit"},
		"no prefix":          {func(e *Entry) { e.Net = netip.Prefix{} }, "does not fit"},
		"impossible prefix":  {func(e *Entry) { e.Net = netip.PrefixFrom(e.Addr, 33) }, "length of the prefix"},
		"no protocol at all": {func(e *Entry) { e.Protocol = 0 }, "the protocol is not possible"},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, func(k *Kernel) {
				s := Set{"A", HashIPPortNet, service.IPv4}
				bad := good
				tt.spoil(&bad)
				kit.Must(t, k.Create(s))
				wantError(t, k.Add(s, []Member{{Entry: good}, {Entry: bad}}), "add to ipset A: ", nil)
				wantError(t, k.Add(s, []Member{{Entry: good}, {Entry: bad}}), tt.want, nil)
				wantList(t, k, s, good)
			})
		})
	}
}

func TestZeroAddress(t *testing.T) {
	alone(t, func(k *Kernel) {
		s := Set{"A", HashIP, service.IPv4}
		kit.Must(t, k.Create(s))
		err := k.Add(s, []Member{{Entry: Entry{Addr: netip.IPv4Unspecified()}}})
		wantError(t, err, "add to ipset A: 0.0.0.0: no set takes the zero address", nil)
	})
}

func TestFullSet(t *testing.T) {
	alone(t, func(k *Kernel) {
		s := Set{"A", HashIP, service.IPv4}
		run(t, "", "ipset", "create", "A", "hash:ip", "comment", "maxelem", "1500")
		all := many(s, 1600)
		err := k.Add(s, all)
		wantError(t, err, "add to ipset A: ", nil)
		wantError(t, err, ": the set is full", nil)
		got, err := k.List(s)
		kit.Must(t, err)
		// How many more than maxelem fit depends on the kernel.
		if len(got) == len(all) || !slices.Equal(got, entries(all[:len(got)])) {
			t.Errorf("the set has %d elements of %d, and these in order: %v", len(got), len(all), slices.Equal(got, entries(all[:len(got)])))
		}
	})
}

// setRule changes an iptables rule that refers to set A.
func setRule(t *testing.T, how string) {
	t.Helper()
	run(t, "", "iptables", "-w", how, "OUTPUT", "-m", "set", "--match-set", "A", "dst")
}

func TestSetInUse(t *testing.T) {
	alone(t, func(k *Kernel) {
		s := Set{"A", HashIP, service.IPv4}
		kit.Must(t, k.Create(s))
		setRule(t, "-A")
		heads, err := k.Headers()
		kit.Must(t, err)
		kit.Check(t, len(heads) == 1 && heads[0].References != 0, "heads of the set = %v, want references", heads)
		k.destroyTimeout = time.Millisecond
		wantError(t, k.Destroy("A"), "destroy ipset A: a rule refers to it", nil)
		wantList(t, k, s)
		// Destroy waits for one that is about to be removed.
		k.destroyTimeout = time.Minute
		done := make(chan error, 1)
		go func() { done <- k.Destroy("A") }()
		setRule(t, "-D")
		kit.Must(t, <-done)
		_, err = k.List(s)
		wantError(t, err, "", ErrMissing)
	})
}

// largest is the element that needs the most bytes.
func largest() Member {
	return Member{entry("2001:db8::1", service.TCP, 80, "2001:db8::/32"), strings.Repeat("x", commentSize)}
}

// TestBatchSize checks that the message of a full batch is below 32 KiB, whatever its
// last element is.
func TestBatchSize(t *testing.T) {
	e := &netlink.Encoder{Buf: make([]byte, batchSize-1)}
	encodeElement(e, HashIPPortNet, largest())
	kit.Check(t, len(e.Buf) <= 32<<10, "message of %d bytes", len(e.Buf))
}

// TestCutAnswers checks that a truncated reply is parsed up to its end and no further.
func TestCutAnswers(t *testing.T) {
	m := largest()
	e := &netlink.Encoder{}
	encodeElement(e, HashIPPortNet, m)
	w := e.Buf
	for n := range w {
		cut := w[:n]
		got := appendMembers(nil, cut)
		kit.Check(t, len(got) == 0, "%d of %d bytes are %v", n, len(w), got)
		short := readMember(cut[min(n, 4):])
		kit.Check(t, (!short.Addr.IsValid() || short.Addr == m.Addr) && (!short.Net.IsValid() || short.Net.Addr() == m.Net.Addr()),
			"%d of %d bytes are %v", n, len(w), short)
	}
	got := appendMembers(nil, w)
	kit.Check(t, len(got) == 1 && got[0] == m, "all bytes are %v, want %v", got, m)
}

// TestShortAttributes parses attributes that are too short for their type.
func TestShortAttributes(t *testing.T) {
	for typ := range uint16(64) {
		e := &netlink.Encoder{}
		e.Uint8(typ, 1)
		e.Bytes(typ, nil)
		w := e.Buf
		if e := readMember(w); e.Addr != (netip.Addr{}) || e.Port != 0 {
			t.Errorf("attribute %d is read as %v", typ, e)
		}
		h := readHeader(w)
		kit.Check(t, h.Entries == 0 && h.References == 0, "attribute %d is read as %v", typ, h)
		binary.NativeEndian.PutUint16(w, 3)
		if e := readMember(w); e != (Member{}) {
			t.Errorf("attribute of 3 bytes is read as %v", e)
		}
	}
}
