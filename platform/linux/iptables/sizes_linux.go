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

// sizes is the signal of iptables-legacy, whose kernel tells nobody of a
// change. What it tells next to free is the size of each table. It gives away
// the tables, too, which takes 7 ms for 1,000 Services of ten endpoints and
// 90 ms for 10,000. So they are looked at when a size has changed or somebody
// has had the lock, and besides as often as costs no more than lookShare.
type sizes struct {
	fd, level int
	family    service.Family
	role      Role
	names     string // of the file that lists the tables that exist
	lock      *lock  // nil if the commands take it by themselves
	seed      maphash.Seed

	seen  tableInfos
	known bool // seen is what we left
	// sum stands for what we left, once fresh says so: where others rarely have
	// the lock, it is worked out a while after a change of ours, which several
	// changes may share, and not at all if somebody had the lock meanwhile.
	sum   uint64
	fresh bool
	// suspect is set while somebody was there since the last look.
	suspect bool
	// blind is set once a change of ours has left a gap between two sums, in
	// which a change of somebody else's that no size and no lock tells of may
	// have become part of what we take for ours.
	blind bool
	dirty bool

	others time.Time // when somebody else last had the lock
	looked time.Time
	cost   time.Duration // of a look
	read   time.Time
}

const (
	// readAgain is how long all this is believed, and readBlind how long if it is
	// not certain.
	readAgain = 10 * time.Minute
	readBlind = time.Minute
	// neighbourly is how long somebody who had the lock is expected to come
	// again.
	neighbourly = time.Minute
	// lookEvery and lookShare bound how much of the time goes into looks, and
	// suspectShare how much if somebody is there all the time. What costs no
	// more than cheapLook is not worth the wait. Whatever looks cost, nobody's
	// change is to wait longer than lookMost for one.
	lookEvery    = 2 * time.Second
	lookMost     = 4 * time.Second
	lookShare    = 100
	suspectShare = 20
	cheapLook    = 5 * time.Millisecond
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

// namesOf returns the file that lists the tables that exist in the namespace of
// the calling thread, which is not there without the module.
func namesOf(f service.Family) string {
	if f == service.IPv6 {
		return "/proc/thread-self/net/ip6_tables_names"
	}
	return "/proc/thread-self/net/ip_tables_names"
}

// readNames returns what file, of namesOf, holds. The kernel gives it to user root
// of the network namespace, mode 0440, whatever rights another user has there
// (https://man7.org/linux/man-pages/man7/capabilities.7.html).
func readNames(file string) ([]byte, error) {
	names, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w: run as root, as only user 0 may read it, or with the right CAP_DAC_READ_SEARCH besides CAP_NET_ADMIN and CAP_NET_RAW", err)
	}
	return names, err
}

func newSizes(f service.Family, of Role, l *lock) (*sizes, error) {
	s := &sizes{family: f, role: of, lock: l, seed: maphash.MakeSeed(), level: unix.IPPROTO_IP, names: namesOf(f)}
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

func (s *sizes) close() { _ = unix.Close(s.fd) }

// ours notices what others did before us. The lock is ours by now.
func (s *sizes) ours(int) error {
	if !s.known || s.dirty {
		return nil
	}
	return s.compare(true)
}

// settled notes what we left. The lock is still ours.
func (s *sizes) settled() error {
	now, err := s.ask()
	s.seen, s.known, s.fresh, s.suspect = now, err == nil, false, false
	if err == nil && (s.lock == nil || !s.lock.listens() || time.Since(s.others) < neighbourly) {
		s.sum, err = s.look(now)
		s.fresh = err == nil
	}
	s.blind = s.blind || !s.fresh
	return err
}

// reset notes what there is. Where there is no table yet, which asking would
// create, that is left to the next change of ours.
func (s *sizes) reset() error {
	s.known, s.fresh, s.suspect, s.blind, s.dirty, s.read = false, false, false, false, false, time.Now()
	if s.lock != nil {
		s.lock.heard()
	}
	names, err := readNames(s.names)
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
	if s.seen, err = s.ask(); err != nil {
		return err
	}
	s.sum, err = s.look(s.seen)
	s.known, s.fresh = err == nil, err == nil
	return err
}

func (s *sizes) touched() (bool, error) {
	var err error
	switch {
	case s.dirty:
	case !s.known:
		err = s.settled()
	case s.fresh || !s.due():
		err = s.compare(false)
	case s.lock.try(): // nobody is about to change anything
		err = s.compare(false)
		if err == nil && !s.dirty {
			s.sum, err = s.look(s.seen)
			s.fresh = err == nil
		}
		s.lock.release()
	}
	believed := readAgain
	if s.blind {
		believed = readBlind
	}
	return s.dirty || time.Since(s.read) > believed, err
}

// due reports that a look may be afforded again.
func (s *sizes) due() bool {
	return time.Since(s.looked) > min(max(lookEvery, lookShare*s.cost), lookMost)
}

// compare notes if the tables are not as we left them. If it is the last time
// before a change of ours, it looks without regard to what that costs.
func (s *sizes) compare(last bool) error {
	heard := s.lock != nil && s.lock.listens() && s.lock.heard()
	now, err := s.ask()
	if err != nil {
		return err
	}
	if heard {
		s.others = time.Now()
	}
	s.suspect = s.suspect || heard || now != s.seen
	switch {
	case !s.fresh:
		s.dirty = s.suspect
	case s.suspect && (last || time.Since(s.looked) > suspectShare*(s.cost-cheapLook)), s.due():
		sum, err := s.look(now)
		if err != nil {
			return err
		}
		s.seen, s.suspect, s.dirty = now, false, sum != s.sum
	}
	return nil
}

func (s *sizes) ask() (tableInfos, error) {
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

func (s *sizes) getsockopt(option uintptr, b []byte) error {
	size := uint32(len(b))
	_, _, code := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), uintptr(s.level), option,
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&size)), 0)
	if code != 0 {
		return code
	}
	return nil
}

// look returns what stands for the rules that matter to us. A table that
// changes meanwhile, or that is not understood, counts as what its size says.
func (s *sizes) look(infos tableInfos) (uint64, error) {
	began := time.Now()
	total := uint64(0)
	for i, table := range s.role.tables() {
		sum, err := s.lookAt(table, infos[i])
		switch {
		case errors.Is(err, unix.EAGAIN):
			sum = maphash.Bytes(s.seed, infos[i][:])
		case err != nil:
			return 0, fmt.Errorf("ask the kernel for table %s: %w", table, err)
		}
		total = total*31 + sum
	}
	s.looked, s.cost = time.Now(), time.Since(began)
	return total, nil
}

func (s *sizes) lookAt(table string, info tableInfo) (sum uint64, err error) {
	err = s.entries(table, info, func(rules []byte) {
		sum = s.sumOf(table, info, rules)
	})
	return sum, err
}

// entries passes the rules of a table to use, which must not keep them. Where
// the table has changed since it had the size in info, that is EAGAIN.
func (s *sizes) entries(table string, info tableInfo, use func([]byte)) error {
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

func (s *sizes) sumOf(table string, info tableInfo, rules []byte) uint64 {
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
