// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// legacyMonitor is the signal of iptables-legacy, whose kernel tells nobody of a
// change. What it tells next to free is the size of each table. It gives away
// the tables, too, which takes 7 ms for 1,000 Services of ten endpoints and
// 90 ms for 10,000. So they are looked at when a size has changed or somebody
// has had the lock, and besides as often as costs no more than readShare.
type legacyMonitor struct {
	fd, level int
	family    service.Family
	role      Role
	namesFile string // of the file that lists the tables that exist
	lock      *lock  // nil if the commands take it by themselves
	seed      maphash.Seed

	infos tableInfos
	known bool // seen is what we left
	// sum stands for what we left, once fresh says so: where others rarely have
	// the lock, it is worked out a while after a change of ours, which several
	// changes may share, and not at all if somebody had the lock meanwhile.
	sum      uint64
	sumValid bool
	// maybeChanged is set while somebody was there since the last look.
	maybeChanged bool
	// uncertain is set once a change of ours has left a gap between two sums, in
	// which a change of somebody else's that no size and no lock tells of may
	// have become part of what we take for ours.
	uncertain bool
	dirty     bool

	othersLockedAt time.Time // when somebody else last had the lock
	readAt         time.Time
	readCost       time.Duration // of a look
	savedAt        time.Time
}

const (
	// saveInterval is how long all this is believed, and uncertainSaveInterval how long if it is
	// not certain.
	saveInterval          = 10 * time.Minute
	uncertainSaveInterval = time.Minute
	// othersLockWindow is how long somebody who had the lock is expected to come
	// again.
	othersLockWindow = time.Minute
	// minReadInterval and readShare bound how much of the time goes into looks, and
	// changedReadShare how much if somebody is there all the time. What costs no
	// more than cheapRead is not worth the wait. Whatever looks cost, nobody's
	// change is to wait longer than maxReadInterval for one.
	minReadInterval  = 2 * time.Second
	maxReadInterval  = 4 * time.Second
	readShare        = 100
	changedReadShare = 20
	cheapRead        = 5 * time.Millisecond
)

// tableInfo is what the kernel says of a table: struct ipt_getinfo, which is
// the same for IPv6.
type tableInfo [84]byte

// tableInfos has those of the tables of a role, and nothing behind them.
type tableInfos [3]tableInfo

// What a tableInfo holds behind the name.
const (
	infoHooks  = 32 // which of the five hooks the table has
	infoStarts = 36 // where their chains begin
	infoSize   = 80
)

// The options of IPv4 and of IPv6 that ask for a tableInfo, and for a table.
const (
	getInfo    = 64
	getEntries = 65
	// entriesHead is what stands before the rules of a table.
	entriesHead = 40
)

var hookNames = [...]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// tableNamesFile returns the file that lists the tables that exist in the namespace of
// the calling thread, which is not there without the module.
func tableNamesFile(f service.Family) string {
	if f == service.IPv6 {
		return "/proc/thread-self/net/ip6_tables_names"
	}
	return "/proc/thread-self/net/ip_tables_names"
}

// readTableNames returns what file, of tableNamesFile, holds. The kernel gives it to user root
// of the network namespace, mode 0440, whatever rights another user has there
// (https://man7.org/linux/man-pages/man7/capabilities.7.html).
func readTableNames(file string) ([]byte, error) {
	names, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w: run as root, as only user 0 may read it, or with the right CAP_DAC_READ_SEARCH besides CAP_NET_ADMIN and CAP_NET_RAW", err)
	}
	return names, err
}

func newLegacyMonitor(f service.Family, of Role, l *lock) (*legacyMonitor, error) {
	s := &legacyMonitor{family: f, role: of, lock: l, seed: maphash.MakeSeed(), level: unix.IPPROTO_IP, namesFile: tableNamesFile(f)}
	domain := unix.AF_INET
	if f == service.IPv6 {
		domain, s.level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("open a raw socket: %w: the rights CAP_NET_ADMIN and CAP_NET_RAW are needed", err)
	}
	if err != nil {
		return nil, fmt.Errorf("open a raw socket: %w", err)
	}
	s.fd = fd
	// The kernel looks at rights before it looks at what is asked for, which is
	// nothing, since asking for a table would create it.
	if err := s.getsockopt(getInfo, make([]byte, 1)); errors.Is(err, unix.EPERM) {
		s.close()
		return nil, fmt.Errorf("ask the kernel for tables: %w: the right CAP_NET_ADMIN is needed", err)
	}
	return s, nil
}

func (s *legacyMonitor) close() { _ = unix.Close(s.fd) }

// beginRestore notices what others did before us. The lock is ours by now.
func (s *legacyMonitor) beginRestore(int) error {
	if !s.known || s.dirty {
		return nil
	}
	return s.compare(true)
}

// endRestore notes what we left. The lock is still ours.
func (s *legacyMonitor) endRestore() error {
	now, err := s.readInfos()
	s.infos, s.known, s.sumValid, s.maybeChanged = now, err == nil, false, false
	if err == nil && (s.lock == nil || !s.lock.notifies() || time.Since(s.othersLockedAt) < othersLockWindow) {
		s.sum, err = s.checksum(now)
		s.sumValid = err == nil
	}
	s.uncertain = s.uncertain || !s.sumValid
	return err
}

// reset notes what there is. Where there is no table yet, which asking would
// create, that is left to the next change of ours.
func (s *legacyMonitor) reset() error {
	s.known, s.sumValid, s.maybeChanged, s.uncertain, s.dirty, s.savedAt = false, false, false, false, false, time.Now()
	if s.lock != nil {
		s.lock.usedByOthers()
	}
	names, err := readTableNames(s.namesFile)
	if err != nil {
		return err
	}
	there := strings.Fields(string(names))
	for _, t := range s.role.tables() {
		if !slices.Contains(there, t) {
			return nil
		}
	}
	// What is read next is at least as new as what is looked at now.
	if s.infos, err = s.readInfos(); err != nil {
		return err
	}
	s.sum, err = s.checksum(s.infos)
	s.known, s.sumValid = err == nil, err == nil
	return err
}

func (s *legacyMonitor) touched() (bool, error) {
	var err error
	switch {
	case s.dirty:
	case !s.known:
		err = s.endRestore()
	case s.sumValid || !s.due():
		err = s.compare(false)
	case s.lock.try(): // nobody is about to change anything
		err = s.compare(false)
		if err == nil && !s.dirty {
			s.sum, err = s.checksum(s.infos)
			s.sumValid = err == nil
		}
		s.lock.release()
	}
	maxAge := saveInterval
	if s.uncertain {
		maxAge = uncertainSaveInterval
	}
	return s.dirty || time.Since(s.savedAt) > maxAge, err
}

// due reports that a look may be afforded again.
func (s *legacyMonitor) due() bool {
	return time.Since(s.readAt) > min(max(minReadInterval, readShare*s.readCost), maxReadInterval)
}

// compare notes if the tables are not as we left them. If it is the last time
// before a change of ours, it looks without regard to what that costs.
func (s *legacyMonitor) compare(last bool) error {
	othersLocked := s.lock != nil && s.lock.notifies() && s.lock.usedByOthers()
	now, err := s.readInfos()
	if err != nil {
		return err
	}
	if othersLocked {
		s.othersLockedAt = time.Now()
	}
	s.maybeChanged = s.maybeChanged || othersLocked || now != s.infos
	switch {
	case !s.sumValid:
		s.dirty = s.maybeChanged
	case s.maybeChanged && (last || time.Since(s.readAt) > changedReadShare*(s.readCost-cheapRead)), s.due():
		sum, err := s.checksum(now)
		if err != nil {
			return err
		}
		s.infos, s.maybeChanged, s.dirty = now, false, sum != s.sum
	}
	return nil
}

func (s *legacyMonitor) readInfos() (tableInfos, error) {
	var all tableInfos
	for i, table := range s.role.tables() {
		info := &all[i]
		copy(info[:], table)
		if err := s.getsockopt(getInfo, info[:]); err != nil {
			return all, fmt.Errorf("ask the kernel for the size of table %s: %w", table, err)
		}
	}
	return all, nil
}

func (s *legacyMonitor) getsockopt(option uintptr, b []byte) error {
	size := uint32(len(b))
	_, _, code := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.level), option,
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if code != 0 {
		return code
	}
	return nil
}

// checksum returns what stands for the rules that matter to us. A table that
// changes meanwhile, or that is not understood, counts as what its size says.
func (s *legacyMonitor) checksum(infos tableInfos) (uint64, error) {
	began := time.Now()
	total := uint64(0)
	for i, table := range s.role.tables() {
		sum, err := s.tableChecksum(table, infos[i])
		switch {
		case errors.Is(err, unix.EAGAIN):
			sum = maphash.Bytes(s.seed, infos[i][:])
		case err != nil:
			return 0, fmt.Errorf("ask the kernel for table %s: %w", table, err)
		}
		total = total*31 + sum
	}
	s.readAt, s.readCost = time.Now(), time.Since(began)
	return total, nil
}

func (s *legacyMonitor) tableChecksum(table string, info tableInfo) (sum uint64, err error) {
	err = s.entries(table, info, func(rules []byte) {
		sum = s.rulesChecksum(table, info, rules)
	})
	return sum, err
}

// entries passes the rules of a table to use, which must not keep them. Where
// the table has changed since it had the size in info, that is EAGAIN.
func (s *legacyMonitor) entries(table string, info tableInfo, use func([]byte)) error {
	size := binary.NativeEndian.Uint32(info[infoSize:])
	// The heap would keep room for the largest table for good.
	all, err := unix.Mmap(-1, 0, entriesHead+int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(all) }()
	copy(all, table)
	binary.NativeEndian.PutUint32(all[entriesHead-8:], size)
	if err := s.getsockopt(getEntries, all); err != nil {
		return err
	}
	use(all[entriesHead:])
	return nil
}

func (s *legacyMonitor) rulesChecksum(table string, info tableInfo, rules []byte) uint64 {
	b := &blob{table: table, role: s.role, family: s.family, bytes: rules, hooks: map[int]string{}}
	has := binary.NativeEndian.Uint32(info[infoHooks:])
	for i, name := range hookNames {
		if has&(1<<i) != 0 {
			b.hooks[int(binary.NativeEndian.Uint32(info[infoStarts+4*i:]))] = name
		}
	}
	sum, understood := b.sum(s.seed)
	if !understood {
		return maphash.Bytes(s.seed, info[:])
	}
	return sum
}
