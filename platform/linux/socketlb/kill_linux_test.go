// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// writerVariable makes the test program fill tables without end, in the memory that is its
// third file. Its value is the family.
const writerVariable = "SOCKETLB_WRITER"

// The sizes of the tables that a writer fills.
const (
	writerEntries = 1024
	writerSlots   = 8192
)

// shared is memory that a writer and its test share. resetting is not 0 while the writer
// makes the tables empty, and changing while it changes a list.
type shared struct {
	all                 []byte
	resetting, changing *uint64
	tables              Memory
}

func mapShared(f *os.File, family service.Family) (*shared, error) {
	w := words[family]
	all, err := unix.Mmap(int(f.Fd()), 0, sizeOfShared(family), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	u := unsafe.Slice((*uint64)(unsafe.Pointer(&all[0])), len(all)/8)
	frontends := u[2 : 2+writerEntries*(w+1)]
	return &shared{all, &u[0], &u[1], Memory{family: family, frontends: frontends, slots: u[2+len(frontends):]}}, nil
}

func sizeOfShared(f service.Family) int {
	w := words[f]
	return 8 * (2 + writerEntries*(w+1) + writerSlots*w)
}

// copy returns the tables as they are.
func (s *shared) copy() *Memory {
	return &Memory{family: s.tables.family, seed: s.tables.seed, frontends: slices.Clone(s.tables.frontends), slots: slices.Clone(s.tables.slots)}
}

// writeForever changes lists until the process ends.
func writeForever(family string) {
	n, _ := strconv.Atoi(family)
	f := service.Family(n)
	s, err := mapShared(os.NewFile(3, "tables"), f)
	if err != nil {
		panic(err)
	}
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 0))
	barrier := func() error { return nil }
	for generation := uint16(1); ; {
		atomic.StoreUint64(s.resetting, 1)
		clear(s.tables.frontends)
		atomic.StoreUint64(s.resetting, 0)
		t := newTables(&s.tables)
		for number := 0; ; generation++ {
			if r.IntN(8) == 0 { // a Service comes, another one may leave
				number++
			}
			c := numberedChange(f, max(0, number-r.IntN(8)), r.IntN(90), generation)
			atomic.StoreUint64(s.changing, 1)
			ok, err := t.set(c, barrier)
			atomic.StoreUint64(s.changing, 0)
			if err != nil {
				panic(err)
			}
			if !ok {
				break // the tables are full
			}
		}
	}
}

// numberedChange returns a list of n endpoints. Each of them has the number of its Service,
// the length of the list and its generation.
func numberedChange(f service.Family, number, n int, generation uint16) change {
	c := change{addr: numberedFrontend(f, number)}
	for i := range n {
		a := []byte{10, byte(number >> 8), byte(number), byte(i)}
		if f == service.IPv6 {
			a = append(make([]byte, 12), a...)
			a[0], a[11] = 0xfd, byte(n)
		}
		addr, _ := netip.AddrFromSlice(a)
		c.endpoints = append(c.endpoints, service.Endpoint{Addr: netip.AddrPortFrom(addr, max(1, generation))})
	}
	return c
}

func numberedFrontend(f service.Family, number int) netip.AddrPort {
	a := []byte{10, 96, byte(number >> 8), byte(number)}
	if f == service.IPv6 {
		a = append(make([]byte, 12), a...)
		a[0] = 0xfd
	}
	addr, _ := netip.AddrFromSlice(a)
	return netip.AddrPortFrom(addr, 80)
}

// whole returns what is wrong with the lists of m: each must be one that was written as a
// whole, for the Service of its entry.
func (m *Memory) whole() error {
	for i := range m.entries() {
		l := m.list(i)
		if l == 0 {
			continue
		}
		if !m.used(m.at(i)) || !m.inside(l) {
			return fmt.Errorf("entry %d has the list %x", i, l)
		}
		to := m.at(i).addrPort(m.family).Addr().AsSlice()
		number := binary.BigEndian.Uint16(to[len(to)-2:])
		all := m.contents(l)
		want := numberedChange(m.family, int(number), l.len(), all[0].Port())
		for j, e := range want.endpoints {
			if all[j] != e.Addr {
				return fmt.Errorf("the list of %s is %s", m.at(i).addrPort(m.family), all)
			}
		}
	}
	return nil
}

// TestKilledAtAnyStore stops a process at thousands of moments while it changes tables. What
// it leaves is what a kill at that moment would leave: each list is an old or a new one,
// never a part, and the next process reaches its own goal from there.
func TestKilledAtAnyStore(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			s, writer := startWriter(t, f)
			r := rand.New(rand.NewPCG(5, 5))
			half := 0
			for i := range 2000 {
				m, changing := s.stopped(t, writer, r.IntN(2000))
				if m == nil {
					continue
				}
				if err := m.whole(); err != nil {
					t.Fatal(err)
				}
				if changing {
					half++
				}
				if i%40 == 0 {
					checkNextProcess(t, m, r)
				}
			}
			if half == 0 {
				t.Error("the writer was never stopped in the middle of a change")
			}
			t.Logf("stopped %d times in the middle of a change", half)
		})
	}
}

// startWriter starts a process that changes tables.
func startWriter(t *testing.T, f service.Family) (*shared, *os.Process) {
	t.Helper()
	fd, err := unix.MemfdCreate("tables", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "tables")
	if err := file.Truncate(int64(sizeOfShared(f))); err != nil {
		t.Fatal(err)
	}
	s, err := mapShared(file, f)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), writerVariable+"="+strconv.Itoa(int(f)))
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = unix.Munmap(s.all)
		file.Close()
	})
	return s, cmd.Process
}

// stopped stops the writer after a while, and returns what it left, and whether it was in the
// middle of a change. It returns nil while the writer makes the tables empty.
func (s *shared) stopped(t *testing.T, writer *os.Process, spins int) (m *Memory, changing bool) {
	t.Helper()
	for range spins {
		atomic.LoadUint64(s.resetting)
	}
	if err := writer.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(writer.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the writer did not stop: %v, %v", status, err)
	}
	defer func() {
		if err := writer.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}()
	if *s.resetting != 0 {
		return nil, false
	}
	return s.copy(), *s.changing != 0
}

// checkNextProcess has a new process adopt m, and reach its own lists.
func checkNextProcess(t *testing.T, m *Memory, r *rand.Rand) {
	t.Helper()
	k := &fake{family: m.family, active: m}
	b := New(m.family, k, Options{})
	var ports []*service.Port
	var want []change
	for number := range 100 {
		c := numberedChange(m.family, number, 1+r.IntN(20), 1)
		want = append(want, c)
		ports = append(ports, &service.Port{
			Name: service.PortName{Name: fmt.Sprint(number), Protocol: service.TCP}, Family: m.family, Cluster: c.endpoints,
			Frontends: []service.Frontend{{Addr: c.addr.Addr(), Port: c.addr.Port()}},
		})
	}
	s := service.New(1, &service.Node{}, ports)
	if _, o := round(t, b, s); o.Err != nil || o.Degraded != "" {
		t.Fatalf("the next process: %+v", o)
	}
	for _, c := range want {
		if got := k.endpoints(c.addr); len(got) != len(c.endpoints) || got[0] != c.endpoints[0].Addr {
			t.Fatalf("after the next process %s leads to %s", c.addr, got)
		}
	}
	if plan, o := round(t, b, s); plan != "" || o.Drift != nil {
		t.Fatalf("then plan %q, drift %q", plan, o.Drift)
	}
	if err := k.active.whole(); err != nil {
		t.Fatal(err)
	}
}
