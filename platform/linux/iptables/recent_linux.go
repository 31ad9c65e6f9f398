// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/iptables/walk"
)

// recentPath has a file for each list of xt_recent, in the network namespace of this
// thread.
const recentPath = "/proc/thread-self/net/xt_recent"

// Recent implements Driver.
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
	seen, err := strconv.ParseUint(walk.Argument(w, "last_seen:"), 10, strconv.IntSize)
	return a, uint(seen), err
}

// tick is a time in the kernel's unit, which is jiffies.
type tick struct {
	jiffies uint
	unit    time.Duration
}

// ticks returns the present time. The kernel counts ticks since its start, from a number
// that overflows 32 bits after five minutes (kernel: include/linux/jiffies.h,
// INITIAL_JIFFIES). The resolution of the coarse clock is one tick (kernel:
// kernel/time/posix-timers.c, posix_get_coarse_res).
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
