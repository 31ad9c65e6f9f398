// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/packet"
)

// lock is the lock file of all users of iptables-legacy on a node (iptables(8), option --wait). The
// proxy takes it in place of the commands: both tables change under one lock, nobody changes them
// before we recorded their state, and a wait can go on after a sync gave up. The file stays open:
// when another process closes it, that process has used the lock.
type lock struct {
	path  string
	freed chan struct{} // receives when an abandoned wait has ended

	mu      sync.Mutex
	file    *os.File // nil if it is not open
	inode   uint64   // of file
	pending *request // a request that the kernel has not granted yet
	notify  int      // inotify file descriptor, -1 if there is none
	changed bool     // the path leads to another file than before
}

// request is a wait for the lock.
type request struct {
	granted chan error // buffered, capacity one
	// abandoned means that no goroutine waits for the result.
	abandoned bool
}

const (
	lockFileEnv     = "XTABLES_LOCKFILE"
	defaultLockFile = "/run/xtables.lock"
	// noLockEnv makes the commands lock another file.
	noLockEnv = lockFileEnv + "=/dev/null"
	// lockWait limits how long a sync waits for other processes.
	lockWait = 5 * time.Second
)

// newLock returns the lock, nil if command cannot be prevented from taking it itself.
func newLock(command string) *lock {
	path, err := exec.LookPath(command)
	if err != nil {
		return nil
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return nil
	}
	program, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(program, []byte(lockFileEnv)) {
		return nil
	}
	l := &lock{path: cmp.Or(os.Getenv(lockFileEnv), defaultLockFile), freed: make(chan struct{}, 1)}
	if l.notify, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		l.notify = -1 // no instances left, see notifies and usedByOthers
	}
	return l
}

func (l *lock) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending == nil && l.file != nil {
		_ = l.file.Close()
	}
	if l.notify >= 0 {
		_ = unix.Close(l.notify)
	}
}

// hold waits for the lock. release releases it. The error names the holder.
func (l *lock) hold(ctx context.Context, wait time.Duration) error {
	r, err := l.requestLock()
	if err != nil {
		return fmt.Errorf("open the lock of iptables: %w", err)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case err := <-r.granted:
		return err
	case <-t.C:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case err := <-r.granted: // granted in the meantime
		return err
	default:
	}
	r.abandoned = true
	return fmt.Errorf("the lock %s is held by %s", l.path, l.holder())
}

// try takes the lock if it is free, and reports whether it did.
func (l *lock) try() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pending == nil && l.open() == nil && flock(l.file, unix.LOCK_EX|unix.LOCK_NB) == nil
}

func (l *lock) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = flock(l.file, unix.LOCK_UN)
}

// requestLock starts a wait, or continues an abandoned one.
func (l *lock) requestLock() (*request, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending != nil {
		l.pending.abandoned = false
		return l.pending, nil
	}
	if err := l.open(); err != nil {
		return nil, err
	}
	r := &request{granted: make(chan error, 1)}
	l.pending = r
	go l.await(r, l.file)
	return r, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (l *lock) await(r *request, f *os.File) {
	err := flock(f, unix.LOCK_EX)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = nil
	if !r.abandoned {
		r.granted <- err
		return
	}
	_ = flock(f, unix.LOCK_UN)
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// open opens the file, unless the open file is still the one at path.
func (l *lock) open() error {
	now, err := os.Stat(l.path)
	if l.file != nil && err == nil && inode(now) == l.inode {
		return nil
	}
	// Without O_NONBLOCK, a named pipe without a writer would block forever (fifo(7)).
	f, err := os.OpenFile(l.path, os.O_RDONLY|os.O_CREATE|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	if now, err = f.Stat(); err != nil {
		_ = f.Close()
		return err
	}
	if l.file != nil {
		_ = l.file.Close()
	}
	l.file, l.inode, l.changed = f, inode(now), true
	if l.notify < 0 {
		return nil
	}
	if _, err := unix.InotifyAddWatch(l.notify, l.path, unix.IN_CLOSE); err != nil {
		_ = unix.Close(l.notify)
		l.notify = -1
	}
	return nil
}

func inode(i os.FileInfo) uint64 {
	s, ok := i.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return s.Ino
}

// passTo runs c under the lock, which it keeps even if this process ends (flock(2)).
func (l *lock) passTo(c *exec.Cmd) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.Env = append(os.Environ(), noLockEnv)
	c.ExtraFiles = append(c.ExtraFiles, l.file)
}

// notifies reports whether usedByOthers can detect the use by other processes.
func (l *lock) notifies() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open() == nil && l.notify >= 0
}

// usedByOthers reports whether others may have used the lock since the last call.
func (l *lock) usedByOthers() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.open(); err != nil || l.notify < 0 {
		return true
	}
	used := l.changed
	l.changed = false
	var buf [4096]byte
	for {
		n, err := unix.Read(l.notify, buf[:])
		if n <= 0 && !errors.Is(err, unix.EINTR) {
			return used
		}
		used = true
	}
}

// holder describes the process that holds the lock, as far as the kernel reports it.
func (l *lock) holder() string {
	const unknown = "another process"
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return unknown
	}
	inode := fmt.Sprintf(":%d", l.inode)
	for line := range strings.Lines(string(text)) {
		w := strings.Fields(line)
		if len(w) < 6 || w[1] != "FLOCK" || !strings.HasSuffix(w[5], inode) {
			continue
		}
		name, err := os.ReadFile("/proc/" + w[4] + "/comm")
		if err != nil { // in another PID namespace, or ended
			return unknown
		}
		return fmt.Sprintf("process %s (%s)", w[4], strings.TrimSpace(string(name)))
	}
	return unknown
}

// recentPath has a file for each list of xt_recent in the network namespace of this thread.
const recentPath = "/proc/thread-self/net/xt_recent"

func (r *runner) Recent(list string) (map[netip.Addr]time.Duration, error) {
	f, err := os.Open(filepath.Join(recentPath, list))
	if errors.Is(err, fs.ErrNotExist) {
		return map[netip.Addr]time.Duration{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	now, err := ticks()
	if err != nil {
		return nil, err
	}
	ages := map[netip.Addr]time.Duration{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		a, seen, err := parseRecent(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", list, err)
		}
		ages[a] = now.since(seen)
	}
	return ages, lines.Err()
}

// parseRecent parses "src=10.244.1.7 ttl: 64 last_seen: 4297382116 oldest_pkt: 1 ...".
func parseRecent(line string) (netip.Addr, uint, error) {
	w := strings.Fields(line)
	if len(w) == 0 {
		return netip.Addr{}, 0, errors.New("an empty line")
	}
	a, err := netip.ParseAddr(strings.TrimPrefix(w[0], "src="))
	if err != nil {
		return a, 0, err
	}
	seen, err := strconv.ParseUint(packet.Argument(w, "last_seen:"), 10, strconv.IntSize)
	return a, uint(seen), err
}

// tick is a time in the kernel's unit, which is jiffies.
type tick struct {
	jiffies uint
	unit    time.Duration
}

// ticks returns the present time. The kernel counts ticks from a number that overflows 32 bits
// after five minutes (kernel: include/linux/jiffies.h, INITIAL_JIFFIES). A tick is the resolution
// of the coarse clock (kernel: kernel/time/posix-timers.c, posix_get_coarse_res).
func ticks() (tick, error) {
	var unit, now unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &unit); err != nil {
		return tick{}, fmt.Errorf("ask for the length of a tick: %w", err)
	}
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return tick{}, fmt.Errorf("ask for the time since the start: %w", err)
	}
	t := tick{unit: time.Duration(unit.Nano())}
	if t.unit <= 0 {
		return t, errors.New("the kernel does not say how long a tick is")
	}
	perSecond := uint((time.Second + t.unit/2) / t.unit)
	start := uint(uint32(-300 * int64(perSecond)))
	t.jiffies = start + uint(time.Duration(now.Nano())/t.unit)
	return t, nil
}

// since returns how much time has passed since a tick.
func (t tick) since(seen uint) time.Duration {
	return max(0, time.Duration(int(t.jiffies-seen))*t.unit)
}
