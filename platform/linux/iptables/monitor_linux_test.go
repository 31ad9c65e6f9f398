// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// runCommand runs a command of b's variant, as any process may, with or without the
// lock.
func runCommand(t *testing.T, b *Backend, args string, env ...string) {
	t.Helper()
	c := exec.Command(b.driver.(*runner).path(""), strings.Fields(args)...)
	c.Env = append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	kit.Need(t, err == nil, "%s: %v\n%s", args, err, out)
}

// waitTimeout limits the wait for something that must happen.
const waitTimeout = 15 * time.Second

func poll(ok func() bool) bool {
	for deadline := time.Now().Add(waitTimeout); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// awaitNotices waits until the system has a free inotify instance. The usual limit for
// all processes of a user is 128 (kernel: fs/notify/inotify/inotify_user.c).
func awaitNotices(t *testing.T) {
	t.Helper()
	if !poll(func() bool {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err == nil
	}) {
		t.Fatal("the instances of inotify are used up: raise fs.inotify.max_user_instances")
	}
}

func touched(t *testing.T, b *Backend) bool {
	t.Helper()
	yes, err := b.driver.Touched(context.Background())
	kit.Need(t, err == nil, "Touched: %v", err)
	return yes
}

// TestEditOfTheSameSizeIsNoticed changes a rule without changing the length or position
// of anything, with and without the shared lock, at once after a change of ours and
// later.
func TestEditOfTheSameSizeIsNoticed(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		want := simple(3)
		for _, env := range []string{"", lockFileEnv + "=/dev/null"} {
			for _, mark := range []string{"0x20/0x20", "0x40/0x40"} {
				if env == "" || mark == "0x20/0x20" {
					apply(t, b, want)
				}
				if env != "" { // only a checksum detects it
					poll(func() bool {
						touched(t, b)
						return !isLegacy(b) || b.driver.(*runner).monitor.(*legacyMonitor).sumValid
					})
				}
				runCommand(t, b, "-t nat -R KUBE-MARK-MASQ 1 -j MARK --set-xmark "+mark, env)
				kit.Check(t, poll(func() bool { return touched(t, b) }),
					"mark %s, environment %q: not noticed", mark, env)
				p := apply(t, b, want)
				kit.Check(t, len(p.Outcome().Drift) == 1, "mark %s, environment %q: drift %q, want one line", mark, env, p.Outcome().Drift)
			}
		}
	})
}

func isLegacy(b *Backend) bool {
	_, ok := b.driver.(*runner).monitor.(*legacyMonitor)
	return ok
}

// TestChainsOfOthersAreNotRead adds and removes chains of others in the tables that we
// use. Only a change that concerns our chains causes a read of the tables.
func TestChainsOfOthersAreNotRead(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		apply(t, b, simple(3))
		poll(func() bool {
			touched(t, b)
			return !isLegacy(b) || b.driver.(*runner).monitor.(*legacyMonitor).sumValid
		})
		for _, args := range []string{
			"-t nat -N AAA", "-t nat -A AAA -j RETURN", "-t nat -N MINE", "-t nat -A MINE -p tcp -j RETURN", "-t nat -A MINE -j KUBE-MARK-MASQ", "-t nat -F MINE",
			"-t filter -N YOURS", "-t filter -A YOURS -j ACCEPT", "-t filter -F YOURS", "-t filter -X YOURS", "-t nat -X MINE",
		} {
			runCommand(t, b, args)
			kit.Need(t, !touched(t, b), "%q had the tables read", args)
		}
		runCommand(t, b, "-t nat -I PREROUTING 1 -p tcp -j ACCEPT")
		runCommand(t, b, "-t nat -D PREROUTING -j KUBE-SERVICES")
		kit.Check(t, poll(func() bool { return touched(t, b) }), "a lost jump is not noticed")
	})
}

// TestLockOfOthers holds the lock for longer than a sync waits.
func TestLockOfOthers(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		r := b.driver.(*runner)
		if r.lock == nil { // iptables-nft has none
			return
		}
		other, err := os.OpenFile(r.lock.path, os.O_CREATE, 0o600)
		kit.Must(t, err)
		defer other.Close()
		kit.Must(t, unix.Flock(int(other.Fd()), unix.LOCK_EX))
		err = r.lock.hold(context.Background(), 10*time.Millisecond)
		want := fmt.Sprintf("is held by process %d (", os.Getpid())
		kit.Check(t, err != nil && strings.Contains(err.Error(), want), "hold = %v, want it to say %q", err, want)
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		err = r.Restore(gone, "*nat\nCOMMIT\n")
		kit.Check(t, errors.Is(err, ErrBusy), "Restore = %v, want it to be busy", err)
		kit.Check(t, !r.lock.try(), "the lock of others was free")
		kit.Must(t, unix.Flock(int(other.Fd()), unix.LOCK_UN))
		select {
		case <-r.lock.freed:
		case <-time.After(waitTimeout):
			t.Error("no notification that the lock is free")
		}
		apply(t, b, simple(1))
		err = unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		kit.Check(t, err == nil, "the lock was not given back: %v", err)
	})
}

// TestRestoreKilledHalfWay ends the command after one of the tables. The next sync finds
// and adds what is missing.
func TestRestoreKilledHalfWay(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		real := b.driver.(*runner).path("-restore")
		undo := b.wrapRestore(t, "sed '/COMMIT/q' | "+real+" \"$@\"\ncat > /dev/null\nkill -9 $$\n: ")
		want := simple(3)
		p, err := b.Plan(context.Background(), want)
		kit.Must(t, err)
		err = p.Apply(context.Background()).Err
		kit.Check(t, errors.Is(err, ErrBusy), "Apply = %v, want it to be busy", err)
		undo()
		if half := apply(t, b, want); half.Empty() || strings.Contains(half.Changes().String(), "+ nat chain") {
			t.Errorf("table nat was in force, the plan is:\n%s", half.Changes())
		}
		if p, err := b.Plan(context.Background(), want); err != nil || !p.Empty() {
			t.Errorf("after the next round: %v, still to do:\n%s", err, generate.Text(p))
		}
	})
}

// TestLockSurvives replaces the lock file.
func TestLockSurvives(t *testing.T) {
	t.Setenv(lockFileEnv, filepath.Join(t.TempDir(), "lock"))
	awaitNotices(t)
	l := newLock("iptables-legacy-restore")
	kit.Need(t, l != nil, "the command takes a lock that nobody can keep from it")
	defer l.close()
	for range 3 {
		kit.Must(t, l.hold(context.Background(), waitTimeout))
		l.release()
		kit.Check(t, l.usedByOthers() && !l.usedByOthers(),
			"a new file is to be heard of once, and we ourselves are not")
		kit.Must(t, os.Remove(l.path))
	}
}

// TestRefusedServiceIsFound makes the command refuse everything that concerns one
// Service, with an error that names only the table. All other Services are programmed.
func TestRefusedServiceIsFound(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		if b.family == service.IPv6 { // simple makes IPv4 Services only
			return
		}
		want := simple(20)
		bad := portChainName(clusterPrefix, simplePort(7))
		replaced := b.wrapRestore(t, `text=$(cat); case $text in *"-A `+bad+`"*) echo 'line 9 failed' >&2; exit 1;; esac; printf '%s\n' "$text" | exec `)
		p, err := b.Plan(context.Background(), want)
		kit.Must(t, err)
		failed := reconcile.PortErrors(p.Apply(context.Background()).Err)
		kit.Check(t, len(failed) == 1 && failed[0].Name.Name == "web-007", "failed: %v, want web-007 alone", failed)
		text, err := b.driver.Save(context.Background())
		n := strings.Count(text, "shop/web-")
		kit.Check(t, err == nil && n == 2*19, "%d entries in force, want 38, %v", n, err)
		replaced()
		apply(t, b, want)
		if p, err := b.Plan(context.Background(), want); err != nil || !p.Empty() {
			t.Errorf("once it is taken: %v, still to do:\n%s", err, generate.Text(p))
		}
	})
}

// TestLostRaceIsRunAgain makes the kernel report that another process was faster. If the
// retry succeeds, nothing is logged.
func TestLostRaceIsRunAgain(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		want := simple(5)
		once := filepath.Join(t.TempDir(), "once")
		b.wrapRestore(t, `if ! [ -e `+once+` ]; then touch `+once+`; cat > /dev/null; `+
			`echo 'iptables-restore: line 9 failed: Resource temporarily unavailable.' >&2; exit 4; fi; exec `)
		p, err := b.Plan(context.Background(), want)
		kit.Must(t, err)
		err = p.Apply(context.Background()).Err
		kit.Check(t, err == nil, "Apply = %v, want it to be run again", err)
		if p, err := b.Plan(context.Background(), want); err != nil || !p.Empty() {
			t.Errorf("then: %v, still to do:\n%s", err, generate.Text(p))
		}
	})
}

// wrapRestore replaces iptables-restore by a script that ends with the real command,
// until the returned function is called.
func (b *Backend) wrapRestore(t *testing.T, script string) (undo func()) {
	t.Helper()
	r := b.driver.(*runner)
	real, dir := r.dir, t.TempDir()
	for _, suffix := range []string{"", "-save"} {
		kit.Must(t, os.Symlink(filepath.Join(real, command(b.family)+suffix), filepath.Join(dir, command(b.family)+suffix)))
	}
	text := "#!/bin/sh\n" + script + r.path("-restore") + " \"$@\"\n"
	kit.Must(t, os.WriteFile(filepath.Join(dir, command(b.family)+"-restore"), []byte(text), 0o755))
	r.dir = dir
	return func() { r.dir = real }
}

// TestReadsAreOftenEnough makes checksums more and more expensive. A change that only a
// checksum detects must be found within five seconds, including two intervals of Watch.
func TestReadsAreOftenEnough(t *testing.T) {
	const promise = 5*time.Second - 2*watchEvery
	for _, cost := range []time.Duration{0, 7 * time.Millisecond, 90 * time.Millisecond, time.Second} {
		s := &legacyMonitor{readCost: cost, readAt: time.Now().Add(-promise - time.Millisecond)}
		kit.Check(t, s.due(), "a look that costs %s is not due after %s", cost, promise)
		s.readAt = time.Now()
		kit.Check(t, !s.due(), "a look that costs %s is due again at once", cost)
	}
}

// TestEditRightAfterOurs changes a rule so that neither a size nor the lock shows it,
// before the first checksum after our change. The monitor takes it for ours, but not for
// long.
func TestEditRightAfterOurs(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		s, ok := b.driver.(*runner).monitor.(*legacyMonitor)
		if !ok { // iptables-nft sends a notification
			return
		}
		want := simple(3)
		apply(t, b, want)
		apply(t, b, simple(4))
		runCommand(t, b, "-t nat -R KUBE-MARK-MASQ 1 -j MARK --set-xmark 0x20/0x20", lockFileEnv+"=/dev/null")
		kit.Need(t, poll(func() bool { return touched(t, b) || s.sumValid }), "nobody looks")
		s.savedAt = time.Now().Add(-uncertainSaveInterval - time.Second)
		kit.Need(t, touched(t, b), "not noticed after %s", uncertainSaveInterval)
		if p := apply(t, b, want); len(p.Outcome().Drift) != 1 {
			t.Errorf("drift %q, want one line", p.Outcome().Drift)
		}
		p := apply(t, b, want)
		kit.Check(t, !p.Outcome().FullSync, "the tables are read though nothing has changed")
		if s.savedAt = time.Now().Add(-uncertainSaveInterval - time.Second); !touched(t, b) { // after our repair
			t.Error("what is not certain is believed for long")
		}
		apply(t, b, want)
		if s.savedAt = time.Now().Add(-uncertainSaveInterval - time.Second); touched(t, b) {
			t.Error("what is certain is not believed")
		}
	})
}

// TestResetWithoutAnswer has the kernel not answer for tables that exist. The monitor says so,
// and takes no state for known.
func TestResetWithoutAnswer(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		s, ok := b.driver.(*runner).monitor.(*legacyMonitor)
		if !ok {
			return
		}
		apply(t, b, simple(1))
		socket := s.fd
		s.fd = -1
		err := s.reset()
		s.fd = socket
		kit.Check(t, err != nil && strings.Contains(err.Error(), "ask the kernel for the size of table") && !s.known, "reset = %v, known: %t", err, s.known)
		err = s.reset()
		kit.Check(t, err == nil && s.known, "reset with an answer = %v, known: %t", err, s.known)
	})
}

// foreignText is what others, kubelet among them, have in the tables.
const foreignText = `*mangle
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-IPTABLES-HINT - [0:0]
COMMIT
*nat
:MINE - [0:0]
:KUBE-MARK-DROP - [0:0]
:KUBE-IP-MASQ - [0:0]
:KUBE-NP-DEFAULT - [0:0]
-A PREROUTING -p tcp -m tcp --dport 1 -j MINE
-A PREROUTING -j KUBE-NP-DEFAULT
-A POSTROUTING -j KUBE-IP-MASQ
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
-A MINE -j RETURN
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
`

// upstreamText is what kube-proxy has in the tables: some of the chains of its modes
// iptables, ipvs and userspace.
const upstreamText = `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-ERIFXISQEP7F7OF4 - [0:0]
:KUBE-SEP-D5T6TEDVCIBOHOXF - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-PORTALS-HOST - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-HOST
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -j KUBE-SVC-ERIFXISQEP7F7OF4
-A KUBE-SVC-ERIFXISQEP7F7OF4 -m statistic --mode random --probability 0.5 -j KUBE-SEP-D5T6TEDVCIBOHOXF
-A KUBE-SEP-D5T6TEDVCIBOHOXF -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
*filter
:KUBE-PROXY-CANARY - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`

// TestExtraneousObjectsAreDeleted finds the leftovers of kube-proxy and of this proxy,
// and removes them and nothing else. It repeats the removal.
func TestExtraneousObjectsAreDeleted(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		r := Leftovers{Variant: Legacy, Family: b.family}
		if strings.Contains(t.Name(), "/nft/") {
			r.Variant = NFT
		}
		other := Leftovers{Variant: Variants[0], Family: b.family}
		if other == r {
			other.Variant = Variants[1]
		}
		restore(t, b, foreignText)
		theirs := saved(t, b)
		wantFound(t, r, "")
		for _, tc := range []struct {
			name, find string
			install    func()
		}{
			{"kube-proxy", "chains of another service proxy: 14 (", func() { restore(t, b, upstreamText) }},
			{"this proxy", "chains of this proxy: ", func() { apply(t, b, simple(0)) }},
		} {
			tc.install()
			wantFound(t, r, tc.find)
			wantFound(t, other, "")
			for range 2 {
				err := r.Remove(t.Context())
				kit.Check(t, err == nil, "%s: Remove: %v", tc.name, err)
			}
			wantFound(t, r, "")
			kit.Same(t, fmt.Sprintf("%s: what is left (-what others have +all)", tc.name), theirs, saved(t, b))
		}
		restore(t, b, "*nat\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n")
		wantFound(t, r, "") // kubelet may have made it
	})
}

// TestLeftoversInUse checks that a chain in use is flushed and that the error names its
// user.
func TestLeftoversInUse(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		r := Leftovers{Variant: Legacy, Family: b.family}
		if strings.Contains(t.Name(), "/nft/") {
			r.Variant = NFT
		}
		restore(t, b, upstreamText+"*nat\n:MINE - [0:0]\n-A MINE -j KUBE-MARK-MASQ\n-A MINE -j KUBE-SERVICES\nCOMMIT\n")
		err := r.Remove(t.Context())
		kit.Check(t, err != nil && strings.Contains(err.Error(), "chain KUBE-SERVICES of table nat is in use: chain MINE"),
			"Remove = %v, want it to name the chains in use", err)
		wantFound(t, r, "chains of another service proxy: 2 (KUBE-MARK-MASQ, KUBE-SERVICES)")
		t.Setenv("PATH", t.TempDir())
		wantFound(t, r, "chains of another service proxy: 2 (KUBE-MARK-MASQ, KUBE-SERVICES)")
		if err := r.Remove(t.Context()); err == nil || !strings.Contains(err.Error(), "the command "+r.String()+"-restore is missing") {
			t.Errorf("Remove without commands = %v", err)
		}
	})
}

// TestLeftoversOfLoopback disables route_localnet together with the rules that protect
// loopback addresses, unless another process had enabled it.
func TestLeftoversOfLoopback(t *testing.T) {
	eachKernel(t, func(t *testing.T, b *Backend) {
		if b.family == service.IPv6 {
			return
		}
		r := Leftovers{Variant: Legacy, Family: b.family}
		if strings.Contains(t.Name(), "/nft/") {
			r.Variant = NFT
		}
		for _, others := range []bool{false, true} {
			if others {
				kit.Must(t, b.driver.EnableRouteLocalnet())
			}
			b.options.LocalhostNodePorts, b.installed = true, nil
			apply(t, b, simple(1))
			open, err := b.driver.RouteLocalnetEnabled()
			kit.Check(t, open && err == nil, "loopback addresses are open: %t, %v", open, err)
			kit.Must(t, r.Remove(t.Context()))
			if open, err := b.driver.RouteLocalnetEnabled(); open != others || err != nil {
				t.Errorf("with the chains gone, loopback addresses are open: %t, %v; want %t", open, err, others)
			}
			b.localnetMarked = false // as in another process
		}
	})
}

func wantFound(t *testing.T, r Leftovers, want string) {
	t.Helper()
	got, err := r.Find(t.Context())
	kit.Check(t, err == nil && (want != "" || got == "") && strings.HasPrefix(got, want),
		"Find = %q, %v; want %q", got, err, want)
}

func restore(t *testing.T, b *Backend, text string) {
	t.Helper()
	kit.Must(t, b.driver.Restore(context.Background(), text))
}

// saved lists all rules of b's family and variant, without counters.
func saved(t *testing.T, b *Backend) string {
	t.Helper()
	out, err := exec.Command(b.driver.(*runner).path("-save")).Output()
	kit.Must(t, err)
	return regexp.MustCompile(`(?m)^#.*\n|\[\d+:\d+\]$`).ReplaceAllString(string(out), "")
}

// TestNodeVariant runs the command of the node.
func TestNodeVariant(t *testing.T) {
	for _, v := range Variants {
		t.Setenv("PATH", variantDir(t, string(v)))
		for _, f := range service.Families {
			got, err := NodeVariant(f)
			kit.Check(t, got == v && err == nil, "%s: Usual = %q, %v", v, got, err)
		}
	}
}
