// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// eachKernel runs test with each variant of iptables and each family, in a network
// namespace of its own, on a thread that ends with it.
func eachKernel(t *testing.T, test func(*testing.T, *Backend)) {
	for _, variant := range []string{"legacy", "nft"} {
		for _, f := range service.Families {
			t.Run(variant+"/"+f.String(), func(t *testing.T) {
				dir := variantDir(t, variant)
				// Other processes on the machine use their own lock.
				t.Setenv(lockFileEnv, filepath.Join(t.TempDir(), "lock"))
				awaitNotices(t)
				netlab.InNamespace(t, func() {
					b := newKernel(t, f, dir)
					defer b.Close() // inotify instances are few on the whole machine
					test(t, b)
				})
			})
		}
	}
}

// variantDir returns a directory in which iptables is the variant.
func variantDir(t *testing.T, variant string) string {
	t.Helper()
	dir := t.TempDir()
	for _, c := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-restore", "-save"} {
			kit.Must(t, os.Symlink("/usr/sbin/"+c+"-"+variant+suffix, filepath.Join(dir, c+suffix)))
		}
	}
	return dir
}

func newKernel(t fataler, f service.Family, dir string) *Backend {
	b, err := New(f, Options{MasqueradeBit: 14, DropInvalid: true, Dir: dir})
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return b
}

// TestKernelHoldsWhatWasPlanned programs random snapshots one after the other. The
// backend never takes its own writes for foreign ones, and a second backend without
// state finds nothing to do.
func TestKernelHoldsWhatWasPlanned(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		rounds := 0
		rapid.Check(t, func(t *rapid.T) {
			if rounds++; rounds > 15 { // each runs several commands
				return
			}
			w := generate.Cluster{T: t, Family: b.family}
			want := service.New(1, generate.WithoutServiceCIDRs{Cluster: w}.Node(), w.Ports())
			apply(t, b, want)
			if touched, err := b.driver.Touched(context.Background()); touched || err != nil {
				t.Fatalf("after our own change: touched %v, %v", touched, err)
			}
			second := newKernel(t, b.family, b.options.Dir)
			defer second.Close()
			generate.RequireNoChange(t, second, want)
		})
	})
}

// TestForeignChangesAreNoticed edits, flushes and adds.
func TestForeignChangesAreNoticed(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		want := simple(0)
		for _, args := range []string{
			"-t nat -F KUBE-POSTROUTING", "-t filter -D FORWARD -j KUBE-FORWARD", "-t nat -A KUBE-SERVICES -j RETURN", "-t nat -N KUBE-SVC-STRAY",
		} {
			apply(t, b, want)
			if p := apply(t, b, want); p.Outcome().FullSync {
				t.Errorf("before %q: the tables are read though nobody touched them", args)
			}
			out, err := exec.Command(b.driver.(*runner).path(""), strings.Fields(args)...).CombinedOutput()
			kit.Need(t, err == nil, "%s: %v\n%s", args, err, out)
			// On a busy machine checksums take long and are made less often.
			kit.Check(t, poll(func() bool { return touched(t, b) }), "after %q: not noticed", args)
			p := apply(t, b, want)
			kit.Check(t, len(p.Outcome().Drift) == 1 && !p.Empty(), "after %q: drift %q, want one line", args, p.Outcome().Drift)
		}
	})
}

// TestRefusedLineIsNamed passes iptables a chain with a rule that it cannot parse.
func TestRefusedLineIsNamed(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		c := change{writes: []chain{{id{nat, "KUBE-SVC-BAD"}, []string{"-p tcp -j RETURN", "-p tcp --no-such-option -j RETURN"}}}}
		err := b.driver.Restore(context.Background(), c.text())
		kit.Check(t, err != nil && !errors.Is(err, ErrBusy) && strings.Contains(err.Error(), "no-such-option"),
			"Restore = %v, want the line to be named", err)
		kit.Must(t, os.Remove(b.driver.(*runner).path("-restore")))
		if err := b.driver.Restore(context.Background(), c.text()); !errors.Is(err, ErrBusy) {
			t.Errorf("without the command: Restore = %v, want ErrBusy, as nothing was refused", err)
		}
	})
}

// TestRefusalStaysTheSame moves the faulty rule to another line.
func TestRefusalStaysTheSame(t *testing.T) {
	fault := exec.Command("false").Run()
	const rule = "-A KUBE-SVC-BAD -p tcp --no-such-option"
	for _, tc := range []struct{ said, text, want string }{
		{"iptables-restore: line 2 failed: oh no", "*nat\n" + rule, "iptables-restore: this line failed: oh no: \"" + rule + "\": exit status 1"},
		{"line 3: RULE_APPEND failed", "*nat\n\n" + rule, "this line: RULE_APPEND failed: \"" + rule + "\": exit status 1"},
		{"unknown option\nError occurred at line: 2\nTry", "*nat\n" + rule, "unknown option Error occurred at this line Try: \"" + rule + "\": exit status 1"},
		{"iptables-restore: line 4 failed", "*filter\nCOMMIT\n*nat\nCOMMIT\n", "the kernel refuses table nat as a whole: exit status 1"},
		{"line 99 failed", "*nat\n", "line 99 failed: exit status 1"},
		{"who knows", "*nat\n", "who knows: exit status 1"},
	} {
		got := restoreError(fault, tc.said, tc.text)
		kit.Check(t, got.Error() == tc.want, "%q: %q, want %q", tc.said, got, tc.want)
	}
}

// TestProbe checks that both variants are sufficient, and that errors name what is
// missing: the command, or what the kernel lacks according to the command.
func TestProbe(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		name := command(b.family)
		t.Setenv("PATH", b.options.Dir+":"+os.Getenv("PATH"))
		runCommand(t, b, "-t nat -S")
		before, err := b.driver.Save(context.Background())
		kit.Must(t, err)
		err = Probe(b.family, Options{})
		kit.Check(t, err == nil, "Probe: %v", err)
		if after, err := b.driver.Save(context.Background()); err != nil || strings.Contains(after, "KUBE-") {
			t.Errorf("Probe left, %v:\n%s\nwhere there was:\n%s", err, after, before)
		}
		poor := t.TempDir()
		for _, suffix := range []string{"", "-save"} {
			kit.Must(t, os.Symlink(filepath.Join(b.options.Dir, name+suffix), filepath.Join(poor, name+suffix)))
		}
		refuses := "#!/bin/sh\ntext=$(cat)\ncase $text in *'-m bpf'*|*'-m statistic'*) echo 'line 3 failed' >&2; exit 2;; esac\n" +
			"printf '%s\\n' \"$text\" | exec " + filepath.Join(b.options.Dir, name+"-restore") + " \"$@\"\n"
		kit.Must(t, os.WriteFile(filepath.Join(poor, name+"-restore"), []byte(refuses), 0o755))
		t.Setenv("PATH", poor+":"+os.Getenv("PATH"))
		const want = "there is no match statistic (kernel module xt_statistic), no match bpf (kernel module xt_bpf): "
		err = Probe(b.family, Options{})
		kit.Check(t, err != nil && strings.Contains(err.Error(), want), "Probe = %v, want %q", err, want)
		t.Setenv("PATH", t.TempDir())
		if err := Probe(b.family, Options{}); err == nil || !strings.Contains(err.Error(), "the command "+name+" is missing") {
			t.Errorf("Probe without the command: %v", err)
		}
		if _, err := New(b.family, Options{}); err == nil || !strings.Contains(err.Error(), "the command "+name+" is missing") {
			t.Errorf("New without the command: %v", err)
		}
	})
}

// TestVariantOfTheNode checks that rules go where kubelet has its own, whichever variant
// the short name of the command is.
func TestVariantOfTheNode(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		for _, chain := range []string{"KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"} {
			runCommand(t, b, "-t mangle -N "+chain)
			chosen, err := New(b.family, Options{MasqueradeBit: 14})
			kit.Must(t, err)
			if isLegacy(chosen) != isLegacy(b) {
				t.Errorf("with %s, %s was chosen", chain, chosen.driver.(*runner).path(""))
			}
			if v, err := NodeVariant(b.family); err != nil || (v == Legacy) != isLegacy(b) {
				t.Errorf("with %s, %s is usual, %v", chain, v, err)
			}
			_ = chosen.Close()
			runCommand(t, b, "-t mangle -X "+chain)
		}
		runCommand(t, b, "-t mangle -N KUBE-IPTABLES-HINT")
		long := command(b.family) + "-" + filepath.Base(filepath.Dir(t.Name()))
		for _, suffix := range []string{"-restore", "-save"} { // one is of no use without the other
			poor := t.TempDir()
			kit.Must(t, os.Symlink("/usr/sbin/"+long+suffix, filepath.Join(poor, long+suffix)))
			t.Setenv("PATH", poor)
			got := commandPrefix(b.family)
			kit.Check(t, got == command(b.family), "with %s alone, %s was chosen", long+suffix, got)
		}
	})
}

// TestRulesCount inserts rules with counters before ours, and reads them.
func TestRulesCount(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		b.options.LocalhostNodePorts = true
		apply(t, b, simple(3))
		var want Packets
		var edits []string
		if b.family == service.IPv4 { // ip6tables-nft 1.8.9 does not accept counters
			want = Packets{Invalid: 7, Loopback: 3}
			edits = []string{"-t filter -I KUBE-FORWARD 1 " + invalidRule + " -c 7 700", "-t nat -I KUBE-POSTROUTING 1 " + loopbackRule + " -c 3 180"}
		}
		for _, e := range edits {
			out, err := exec.Command(b.driver.(*runner).path(""), strings.Fields(e)...).CombinedOutput()
			kit.Need(t, err == nil, "%s: %v\n%s", e, err, out)
		}
		got, err := b.Packets(t.Context())
		kit.Check(t, err == nil && got == want, "Packets = %+v, %v, want %+v", got, err, want)
	})
}

// TestCommandsBecomeOthers switches the names of the commands to the other variant, as
// an administrator may.
func TestCommandsBecomeOthers(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		now, then := Legacy, NFT
		if strings.Contains(t.Name(), "/nft/") {
			now, then = then, now
		}
		apply(t, b, simple(1))
		for _, suffix := range []string{"", "-restore", "-save"} {
			name := b.driver.(*runner).path(suffix)
			kit.Must(t, os.Remove(name))
			kit.Must(t, os.Symlink("/usr/sbin/"+command(b.family)+"-"+string(then)+suffix, name))
		}
		apply(t, b, simple(2))
		again := &runner{family: b.family, dir: variantDir(t, string(now))}
		kit.Must(t, again.open())
		defer again.Close()
		generate.RequireNoChange(t, NewWith(b.family, b.options, again), simple(2))
		wantFound(t, Leftovers{Variant: then, Family: b.family}, "")
	})
}

// TestChainsAreListedWhole lists many chains while others are added and removed.
func TestChainsAreListedWhole(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		if !strings.Contains(t.Name(), "/nft/") {
			return
		}
		const some = 600
		var text strings.Builder
		text.WriteString("*nat\n")
		for i := range some {
			fmt.Fprintf(&text, ":A%03d - [0:0]\n", i)
		}
		for i := range some {
			fmt.Fprintf(&text, ":KUBE-SVC-%03d - [0:0]\n", i)
		}
		restore(t, b, text.String()+"COMMIT\n")
		shuffle(t, b)
		for try := range 200 {
			all, err := nftChains(b.family)
			n := 0
			for _, i := range all {
				if strings.HasPrefix(i.name, "KUBE-SVC-") {
					n++
				}
			}
			kit.Need(t, err == nil && n == some, "try %d: %d chains, %v; want %d", try, n, err, some)
		}
	})
}

// shuffle keeps removing the first chain and adding it behind the last one, until the
// test ends. After some rounds it pauses for the time that a busy machine needs to list
// the chains.
func shuffle(t *testing.T, b *Backend) {
	t.Helper()
	chain := "chain ip nat A000"
	if b.family == service.IPv6 {
		chain = "chain ip6 nat A000"
	}
	c := exec.Command("sh", "-c", "while for i in 1 2 3 4 5; do nft delete "+chain+" && nft add "+chain+" && sleep 0.01 || exit; done; do sleep 0.3; done")
	kit.Must(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
}

// TestNoTablesNeedNoRight lists chains where there are no tables, in a process that has
// only the capability for nftables. If there is a table, its contents cannot be read.
func TestNoTablesNeedNoRight(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var rights [2]unix.CapUserData
		kit.Must(t, unix.Capget(&none, &rights[0]))
		fewer := rights
		fewer[0].Effective &^= 1<<unix.CAP_NET_RAW | 1<<unix.CAP_NET_ADMIN
		for _, tables := range []bool{false, true} {
			if tables && strings.Contains(t.Name(), "/nft/") {
				return
			}
			if tables {
				restore(t, b, "*nat\n:MINE - [0:0]\nCOMMIT\n")
			}
			if err := unix.Capset(&none, &fewer[0]); err != nil { // of this thread
				t.Fatal(err)
			}
			what, err := Leftovers{Variant: Legacy, Family: b.family}.Find(t.Context())
			backErr := unix.Capset(&none, &rights[0])
			kit.Need(t, backErr == nil, "%v", backErr)
			kit.Check(t, what == "" && (err != nil) == tables, "with tables %t: Find = %q, %v", tables, what, err)
		}
	})
}

// The kernel takes a list with branches, and holds what was planned while an endpoint
// comes and goes.
func TestKernelHoldsLists(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		if b.family == service.IPv6 {
			return // the same rules with other addresses
		}
		for i, n := range []int{300, 299, 300, 60, 300} {
			p := widePort(1, n)
			if i%2 == 1 {
				p.Affinity = time.Hour
			}
			want := wide(uint64(i+1), p)
			apply(t, b, want)
			b.Forget()
			if p := apply(t, b, want); !p.Empty() {
				t.Errorf("%d endpoints: read back, this is to do:\n%s", n, p.Changes())
			}
		}
	})
}

// TestLockThatIsANamedPipe replaces the lock file by a named pipe without a writer.
func TestLockThatIsANamedPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	kit.Must(t, unix.Mkfifo(path, 0o600))
	taken := make(chan bool, 1)
	go func() {
		l := &lock{path: path, freed: make(chan struct{}, 1), notify: -1}
		taken <- l.try()
		l.close()
	}()
	select {
	case ok := <-taken:
		kit.Check(t, ok, "the lock is free and was not taken")
	case <-time.After(10 * time.Second):
		t.Error("opening the lock waits for somebody to write to a pipe")
	}
}

// TestRuleAheadIsNoticed checks for each variant that a rule ahead of ours that lets all
// packets pass is noticed, and that a rule that matches less moves nothing.
func TestRuleAheadIsNoticed(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		want := simple(3)
		for _, rule := range []string{"-j ACCEPT", "-p tcp -j RETURN", "-m comment --comment all -j ACCEPT", "-p tcp -j REDIRECT --to-ports 99"} {
			apply(t, b, want)
			poll(func() bool {
				touched(t, b)
				return !isLegacy(b) || b.driver.(*runner).monitor.(*legacyMonitor).sumValid
			})
			runCommand(t, b, "-t nat -I PREROUTING 1 "+rule)
			kit.Need(t, poll(func() bool { return touched(t, b) }), "%q is not noticed", rule)
			if p := apply(t, b, want); len(p.Outcome().Drift) != 1 || !strings.Contains(p.Outcome().Drift[0], "hidden") {
				t.Errorf("%q: drift %q, want one line", rule, p.Outcome().Drift)
			}
			if p := apply(t, b, want); !p.Empty() {
				t.Errorf("%q: not settled:\n%s", rule, p.Changes())
			}
		}
		runCommand(t, b, "-t nat -I PREROUTING 1 -p tcp -i nobody0 -j ACCEPT")
		runCommand(t, b, "-t nat -I PREROUTING 1 -p icmp -j ACCEPT")
		if p := apply(t, b, want); !p.Empty() {
			t.Errorf("rules of others have something changed:\n%s", p.Changes())
		}
	})
}

// TestDormantTables makes a table dormant, before the first sync and later. The backend
// must find and report it and make it active, and must not take its own change for a
// foreign one.
func TestDormantTables(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		if isLegacy(b) { // tables of iptables-legacy have no flags
			return
		}
		want := simple(3)
		apply(t, b, want)
		for _, table := range tables {
			name := netlink.FamilyName(b.family) + " " + table
			dormant := "add table " + name + " { flags dormant; }"
			runNFT(t, dormant)
			kit.Need(t, poll(func() bool { return touched(t, b) }), "%s: not noticed", dormant)
			p := apply(t, b, want)
			drift := strings.Join(p.Outcome().Drift, "\n")
			kit.Check(t, strings.Contains(drift, "table "+table+" is dormant"), "%s: drift %q", dormant, drift)
			kit.Check(t, !touched(t, b), "%s: our own change counts as another one's", dormant)
			text := runNFT(t, "list table "+name)
			kit.Check(t, !strings.Contains(text, "dormant"), "still dormant:\n%s", text)
			runNFT(t, dormant)
			b.Forget()
			apply(t, b, want)
			if text := runNFT(t, "list table "+name); strings.Contains(text, "dormant") {
				t.Errorf("still dormant after a start:\n%s", text)
			}
		}
	})
}

func runNFT(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("nft", command).CombinedOutput()
	kit.Need(t, err == nil, "nft %s: %v\n%s", command, err, out)
	return string(out)
}

// countedSaves counts lists of all chains. meanwhile, if set, is called once before a chain is read.
type countedSaves struct {
	*runner
	saves     int
	meanwhile func()
}

func (c *countedSaves) Save(ctx context.Context) (string, error) {
	c.saves++
	return c.runner.Save(ctx)
}

func (c *countedSaves) Chains(ctx context.Context) oneByOne {
	return &disturbed{c.runner.Chains(ctx), c}
}

type disturbed struct {
	oneByOne
	by *countedSaves
}

func (d *disturbed) Read(table, chain string) string {
	if act := d.by.meanwhile; act != nil {
		d.by.meanwhile = nil
		act()
	}
	return d.oneByOne.Read(table, chain)
}

// TestTraceReadsFewChains checks that a connection is followed without a list of all chains, that
// faults are found so, too, and that all chains are listed if others change something meanwhile, and
// once for many connections.
func TestTraceReadsFewChains(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		if isLegacy(b) {
			return
		}
		want := simple(3)
		apply(t, b, want)
		d := &countedSaves{runner: b.driver.(*runner)}
		counted := NewWith(b.family, b.options, d)
		expect := func(when string, faults bool, saves int) {
			t.Helper()
			d.saves = 0
			for p := range want.Ports(b.family) {
				f := p.Frontends[0]
				c := route.Conn{Protocol: p.Name.Protocol, From: f.Addr.Next(), To: netip.AddrPortFrom(f.Addr, f.Port), Interface: "eth0"}
				w, err := counted.Trace(t.Context(), want, c, func(netip.Addr) bool { return false })
				kit.Must(t, err)
				kit.Check(t, (len(w.Faults) > 0) == faults && d.saves == saves && (w.Action == route.Forward) != faults,
					"%s: %s, %d lists of all chains, faults %q", when, w.Action, d.saves, w.Faults)
				return
			}
		}
		expect("as it should be", false, 0)
		d.meanwhile = func() { runNFT(t, "add table "+netlink.FamilyName(b.family)+" another") }
		expect("others change something", false, 1)
		runCommand(t, b, "-t nat -F KUBE-SERVICES")
		expect("a chain is empty", true, 0)
		runCommand(t, b, "-t nat -F PREROUTING")
		expect("jumps are missing", true, 0)
		counted.ReadOnce()
		expect("the first of many", true, 1)
		expect("the second", true, 0)
	})
}
