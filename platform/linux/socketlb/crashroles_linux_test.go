// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

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
