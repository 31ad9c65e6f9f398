// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/test/kit"
)

// Four proxies are killed one after the other, so often, or as long as this.
const (
	crashTurns = 25
	crashTime  = 30 * time.Second
)

// TestKilledWhileClientsConnect kills proxies at random moments: while they load programs,
// replace those of another version, and change lists. Meanwhile clients connect. No
// connection is lost, and none leads to an endpoint that a round had removed. The next
// process adopts what the last one left, or replaces it.
func TestKilledWhileClientsConnect(t *testing.T) {
	inNode(t, func(n *node) {
		n.close(t) // others are the proxies
		if err := serveEverywhere(); err != nil {
			t.Error(err)
			return
		}
		k := newKiller(t, n)
		k.kill(k.changed(), time.Millisecond)
		crowd := startRole(t, crowdVariable+"=1", n.options.Cgroup, k.file)
		for i, end := 0, time.Now().Add(crashTime); i < crashTurns && time.Now().Before(end) && !t.Failed(); i++ {
			k.upgrade = 1
			k.kill(k.reaches(phaseBuilds), 20*time.Millisecond)
			k.kill(k.reaches(phaseActivates), 5*time.Millisecond)
			k.upgrade = 0
			k.kill(k.reaches(phaseStarts), 10*time.Millisecond)
			k.kill(k.changed(), time.Millisecond)
		}
		k.ended = 1
		if err := crowd.Wait(); err != nil {
			t.Error(err)
		}
		t.Logf("%d connections; the next process adopted %d of those killed, by phase: %d", k.connections, k.adopted, k.killed)
		if k.connections < 1000 || k.wrong != 0 {
			t.Errorf("%d connections, %d of them wrong", k.connections, k.wrong)
		}
		if k.adopted == 0 || k.killed[phaseBuilds] == 0 || k.killed[phaseActivates] == 0 || k.killed[phaseChanges] == 0 {
			t.Error("the proxies were not killed in all phases, or nothing was adopted")
		}
		k.checkLast(t, n)
	})
}

// killer starts proxies and kills them.
type killer struct {
	*progress
	t      *testing.T
	file   *os.File
	role   string
	cgroup string
	rand   *rand.Rand
	killed [phases]int // by what they did
}

func newKiller(t *testing.T, n *node) *killer {
	t.Helper()
	p, file := newProgress(t)
	role := proxyVariable + "=" + n.options.Cgroup + ":" + n.options.Pins
	return &killer{progress: p, t: t, file: file, role: role, cgroup: n.options.Cgroup, rand: rand.New(rand.NewPCG(3, 3))}
}

// kill starts a proxy, and kills it at a moment within a time after a condition.
func (k *killer) kill(condition func() bool, within time.Duration) {
	k.t.Helper()
	k.phase = phaseNone
	proxy := startRole(k.t, k.role, k.cgroup, k.file)
	for end := time.Now().Add(kit.Limit); !condition(); {
		if time.Now().After(end) {
			k.t.Fatal("a proxy does not get on")
		}
		// A pause would be longer than what the proxy does next.
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	for end := time.Now().Add(time.Duration(k.rand.Int64N(int64(within)))); time.Now().Before(end); {
		continue
	}
	kit.Must(k.t, proxy.Process.Kill())
	if err := proxy.Wait(); !killedBy(err) {
		k.t.Errorf("a proxy has ended itself: %v", err)
	}
	k.killed[k.phase]++
}

// reaches is true when the proxy is in a phase or a later one.
func (k *killer) reaches(phase uint64) func() bool {
	return func() bool { return atomic.LoadUint64(&k.phase) >= phase }
}

// changed is true after some more rounds.
func (k *killer) changed() func() bool {
	goal := k.rounds + 1 + k.rand.Uint64N(200)
	return func() bool { return atomic.LoadUint64(&k.rounds) >= goal }
}

// checkLast requires that one more process brings all in order.
func (k *killer) checkLast(t *testing.T, n *node) {
	t.Helper()
	want := k.snapshot()
	n.open(t)
	n.sync(t, want)
	for _, b := range n.backends {
		held, wanted, err := b.ReadBack(want)
		if err != nil || held.String() != wanted.String() || held == nil {
			t.Errorf("at last: %v\n%s\nwant\n%s", err, held, wanted)
		}
		if folders, err := b.driver.(*kernel).folders(); err != nil || len(folders) != 1 {
			t.Errorf("at last there are folders %v of tables, %v", folders, err)
		}
	}
}

func newProgress(t *testing.T) (*progress, *os.File) {
	t.Helper()
	fd, err := unix.MemfdCreate("progress", unix.MFD_CLOEXEC)
	kit.Must(t, err)
	file := os.NewFile(uintptr(fd), "progress")
	t.Cleanup(func() { file.Close() })
	p, err := mapProgress(file)
	kit.Must(t, err)
	return p, file
}

// serveEverywhere makes all endpoints addresses of this network namespace. 127.0.0.0/8 is
// so anyway.
func serveEverywhere() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	_, all, _ := net.ParseCIDR("fd05::/16")
	const local = 255 // the table of addresses of this host, see ip-route(8)
	return netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL, Table: local})
}

// startRole starts this program in another role.
func startRole(t *testing.T, role, cgroup string, file *os.File) *exec.Cmd {
	t.Helper()
	dir, err := os.Open(cgroup)
	kit.Must(t, err)
	defer dir.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), role)
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL}
	kit.Must(t, cmd.Start())
	return cmd
}

func killedBy(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}
