// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
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
		err := crowd.Wait()
		kit.Check(t, err == nil, "%v", err)
		t.Logf("%d connections; the next process adopted %d of those killed, by phase: %d", k.connections, k.adopted, k.killed)
		kit.Check(t, k.connections >= 1000 && k.wrong == 0, "%d connections, %d of them wrong", k.connections, k.wrong)
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
	err := proxy.Wait()
	kit.Check(k.t, killedBy(err), "a proxy has ended itself: %v", err)
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
		kit.Check(t, err == nil && held.String() == wanted.String() && held != nil,
			"at last: %v\n%s\nwant\n%s", err, held, wanted)
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

// proxyVariable makes the test program change the layer without end. Its value is the cgroup
// and the folder for pins. crowdVariable makes it connect through the layer. Both have the
// memory of their progress as third file.
const (
	proxyVariable = "SOCKETLB_PROXY"
	crowdVariable = "SOCKETLB_CROWD"
)

// What a proxy does when it is killed.
const (
	phaseNone = iota
	phaseStarts
	phaseBuilds
	phaseActivates
	phaseWaits
	phaseChanges
	phases
)

// crashServices is the number of Services of a proxy that is killed.
const crashServices = 16

// progress is memory that a proxy, its clients and the test share. A Service has one
// generation of endpoints after the other. started is the one that its proxy
// has to write, and applied the one that a round has written.
type progress struct {
	started, applied          [crashServices]uint64
	phase, rounds             uint64
	adopted, upgrade          uint64
	connections, wrong, ended uint64
}

func mapProgress(f *os.File) (*progress, error) {
	if err := f.Truncate(int64(unsafe.Sizeof(progress{}))); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(progress{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*progress)(unsafe.Pointer(&b[0])), nil
}

// listAt returns the list of a Service in a generation. Its endpoints tell both.
func listAt(f service.Family, number int, generation uint64) change {
	c := change{addr: numberedFrontend(f, number)}
	for i := range 1 + (generation*7+uint64(number))%32 {
		// 4 bits for the Service, 15 for the generation, 5 for the endpoint.
		x := binary.BigEndian.AppendUint32(nil, uint32(number)<<20|uint32(generation&0x7fff)<<5|uint32(i))
		a := []byte{127, x[1], x[2], x[3]}
		if f == service.IPv6 {
			a = append([]byte{0xfd, 5, 15: 0}[:12], 0, x[1], x[2], x[3])
		}
		addr, _ := netip.AddrFromSlice(a)
		c.endpoints = append(c.endpoints, service.Endpoint{Addr: netip.AddrPortFrom(addr, crashPort)})
	}
	return c
}

// crashPort is that of the server to which all endpoints lead.
const crashPort = 8080

// servesAt returns whether an endpoint is one of a Service, and in which generation.
func servesAt(a netip.Addr, number int) (generation uint64, ok bool) {
	b := a.Unmap().AsSlice()
	x := uint32(b[len(b)-3])<<16 | uint32(b[len(b)-2])<<8 | uint32(b[len(b)-1])
	return uint64(x >> 5 & 0x7fff), int(x>>20) == number
}

func portAt(f service.Family, number int, generation uint64) *service.Port {
	c := listAt(f, number, generation)
	return &service.Port{
		Name: service.PortName{Name: fmt.Sprint(number), Protocol: service.TCP}, Family: f, Cluster: c.endpoints,
		Frontends: []service.Frontend{{Addr: c.addr.Addr(), Port: c.addr.Port()}},
	}
}

// snapshot returns what a proxy has to write.
func (p *progress) snapshot() *service.Snapshot {
	var ports []*service.Port
	for _, f := range service.Families {
		for number := range crashServices {
			ports = append(ports, portAt(f, number, p.started[number]))
		}
	}
	return service.New(1, &service.Node{}, ports)
}

// marked is a Driver that tells in which call it is.
type marked struct {
	Driver
	p *progress
}

// Adopt finds nothing if the process is to have other programs than the last one.
func (ma marked) Adopt() (*Memory, error) {
	if atomic.LoadUint64(&ma.p.upgrade) != 0 {
		return nil, nil
	}
	m, err := ma.Driver.Adopt()
	if m != nil {
		atomic.AddUint64(&ma.p.adopted, 1)
	}
	return m, err
}

func (ma marked) Build(frontends, slots int) (*Memory, error) {
	atomic.StoreUint64(&ma.p.phase, phaseBuilds)
	return ma.Driver.Build(frontends, slots)
}

func (ma marked) Activate() error {
	atomic.StoreUint64(&ma.p.phase, phaseActivates)
	return ma.Driver.Activate()
}

// proxyForever adopts or makes the layer, and changes one Service after the other.
func proxyForever(where string) {
	p, err := mapProgress(os.NewFile(3, "progress"))
	if err != nil {
		panic(err)
	}
	atomic.StoreUint64(&p.phase, phaseStarts)
	var o Options
	o.Cgroup, o.Pins, _ = strings.Cut(where, ":")
	var backends []*Backend
	for _, f := range service.Families {
		backends = append(backends, New(f, marked{NewDriver(f, o), p}, o))
		backends[len(backends)-1].SetResync(time.Hour)
	}
	apply := func(s *service.Snapshot) {
		for _, b := range backends {
			plan, err := b.Plan(context.Background(), s)
			if err != nil {
				panic(err)
			}
			if out := plan.Apply(context.Background()); out.Err != nil || out.Degraded != "" {
				panic(fmt.Sprint(out.Err, out.Degraded))
			}
		}
		for i := range p.started {
			atomic.StoreUint64(&p.applied[i], p.started[i])
		}
		atomic.AddUint64(&p.rounds, 1)
	}
	s := p.snapshot()
	apply(s)
	for r := rand.New(rand.NewPCG(uint64(os.Getpid()), 0)); ; {
		atomic.StoreUint64(&p.phase, phaseWaits)
		number := r.IntN(crashServices)
		before := p.started[number]
		var changes []service.Change
		for _, f := range service.Families {
			changes = append(changes, service.Change{Old: portAt(f, number, before), New: portAt(f, number, before+1)})
		}
		s = s.With(s.Generation+1, s.Node, changes)
		atomic.StoreUint64(&p.started[number], before+1)
		atomic.StoreUint64(&p.phase, phaseChanges)
		apply(s)
	}
}

// connectForever is many clients, and the server to which their connections lead.
func connectForever() {
	p, err := mapProgress(os.NewFile(3, "progress"))
	if err != nil {
		panic(err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", crashPort))
	if err != nil {
		panic(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				panic(err)
			}
			go greet(c, c.LocalAddr().(*net.TCPAddr).AddrPort())
		}
	}()
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for atomic.LoadUint64(&p.ended) == 0 {
				if err := p.connect(); err != nil && atomic.AddUint64(&p.wrong, 1) < 20 {
					fmt.Println(err)
				}
				atomic.AddUint64(&p.connections, 1)
			}
		})
	}
	clients.Wait()
}

// connect makes a connection to a Service. It has to lead to an endpoint that was in force
// or about to be while it was made, and has to have the name of the Service.
func (p *progress) connect() error {
	number := rand.IntN(crashServices)
	to := numberedFrontend(service.Families[rand.IntN(2)], number)
	oldest := atomic.LoadUint64(&p.applied[number])
	c, err := net.DialTimeout("tcp", to.String(), 10*time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	newest := atomic.LoadUint64(&p.started[number])
	text, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return fmt.Errorf("connected to %s: %w", to, err)
	}
	at, err := netip.ParseAddrPort(strings.TrimSpace(text))
	if err != nil {
		return err
	}
	generation, ok := servesAt(at.Addr(), number)
	if !ok || (generation-oldest)&0x7fff > newest-oldest {
		return fmt.Errorf("connected to %s, and led to %s, generation %d, want one of %d to %d", to, at, generation, oldest&0x7fff, newest&0x7fff)
	}
	if peer := c.RemoteAddr().String(); peer != to.String() {
		return fmt.Errorf("connected to %s, peer %s", to, peer)
	}
	return nil
}

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
				kit.Must(t, m.whole())
				if changing {
					half++
				}
				if i%40 == 0 {
					checkNextProcess(t, m, r)
				}
			}
			kit.Check(t, half != 0, "the writer was never stopped in the middle of a change")
			t.Logf("stopped %d times in the middle of a change", half)
		})
	}
}

// startWriter starts a process that changes tables.
func startWriter(t *testing.T, f service.Family) (*shared, *os.Process) {
	t.Helper()
	fd, err := unix.MemfdCreate("tables", unix.MFD_CLOEXEC)
	kit.Must(t, err)
	file := os.NewFile(uintptr(fd), "tables")
	kit.Must(t, file.Truncate(int64(sizeOfShared(f))))
	s, err := mapShared(file, f)
	kit.Must(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), writerVariable+"="+strconv.Itoa(int(f)))
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	kit.Must(t, cmd.Start())
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
	kit.Must(t, writer.Signal(syscall.SIGSTOP))
	var status unix.WaitStatus
	_, err := unix.Wait4(writer.Pid, &status, unix.WUNTRACED, nil)
	kit.Need(t, err == nil && status.Stopped(), "the writer did not stop: %v, %v", status, err)
	defer func() { kit.Must(t, writer.Signal(syscall.SIGCONT)) }()
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
	_, o := round(t, b, s)
	kit.Need(t, o.Err == nil && o.Degraded == "", "the next process: %+v", o)
	for _, c := range want {
		got := k.endpoints(c.addr)
		kit.Need(t, len(got) == len(c.endpoints) && got[0] == c.endpoints[0].Addr, "after the next process %s leads to %s", c.addr, got)
	}
	if plan, o := round(t, b, s); plan != "" || o.Drift != nil {
		t.Fatalf("then plan %q, drift %q", plan, o.Drift)
	}
	kit.Must(t, k.active.whole())
}
