// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"net/netip"
	"runtime"
	"slices"
	"sync"

	"kubeproxy/common/service"
	"kubeproxy/test/backendtest"
)

// fake is a Driver without a kernel. Programs are calls of connect.
type fake struct {
	family service.Family
	// programs is held by each program, and by Barrier until they have ended.
	programs sync.RWMutex

	built, active *Memory
	detached      error
	// fails are the calls that fail, and crashes the one in which the process dies.
	fails    map[string]bool
	crashes  string
	barriers int
	// pods is the cgroup of all pods, and followed the one whose pods are taken.
	pods, followed string
	// strays counts programs of an earlier process, and unknown names those of somebody.
	strays  int
	unknown string
	taken   Taken
	seeds   []uint64 // of the next tables
}

var errInjected = backendtest.ErrInjected

func (f *fake) fail(call string) error {
	if f.crashes == call {
		panic(backendtest.ErrCrash)
	}
	if f.fails[call] {
		return errInjected
	}
	return nil
}

func (f *fake) Adopt() (*Memory, error) { return f.active, f.fail("Adopt") }

func (f *fake) Build(frontends, slots int) (*Memory, error) {
	w := words[f.family]
	var seed uint64
	if len(f.seeds) > 0 {
		seed, f.seeds = f.seeds[0], f.seeds[1:]
	}
	f.built = &Memory{family: f.family, seed: seed, frontends: make([]uint64, frontends*(w+1)), slots: make([]uint64, slots*w)}
	return f.built, f.fail("Build")
}

func (f *fake) Activate() error {
	if err := f.fail("Activate"); err != nil {
		return err
	}
	f.programs.Lock()
	defer f.programs.Unlock()
	f.active, f.built, f.detached, f.followed = f.built, nil, nil, f.pods
	return nil
}

func (f *fake) Attached() error { return f.detached }

func (f *fake) Moved() (string, error) {
	if f.pods == f.followed {
		return "", f.fail("Moved")
	}
	return "the cgroup of all pods is " + f.pods, f.fail("Moved")
}

func (f *fake) Follow() error {
	f.followed = f.pods
	return f.fail("Follow")
}

func (f *fake) Barrier() error {
	f.programs.Lock()
	defer f.programs.Unlock()
	f.barriers++
	return f.fail("Barrier")
}

func (f *fake) Inspect() (*State, error) {
	if f.active == nil {
		return nil, f.fail("Inspect")
	}
	s := &State{Memory: f.active, Pods: f.followed != "", Others: f.unknown}
	if f.detached != nil {
		s.Fault = f.detached.Error()
	}
	return s, f.fail("Inspect")
}

func (f *fake) Others() (Others, error) {
	if f.strays > 0 {
		return Others{Strays: f.strays, Text: "strays"}, f.fail("Others")
	}
	return Others{Text: f.unknown}, f.fail("Others")
}

func (f *fake) Evict() error {
	if err := f.fail("Evict"); err != nil {
		return err
	}
	f.strays = 0
	return nil
}

func (f *fake) Installed() (bool, error) { return f.active != nil, f.fail("Installed") }

func (f *fake) Remove() error {
	if err := f.fail("Remove"); err != nil {
		return err
	}
	f.active = nil
	return nil
}

func (f *fake) Release() {}

func (f *fake) Taken() (Taken, error) { return f.taken, f.fail("Taken") }

// connect does what the programs do, and returns the endpoint with number choice.
func (f *fake) connect(to netip.AddrPort, choice int) (netip.AddrPort, bool) {
	f.programs.RLock()
	defer f.programs.RUnlock()
	m := f.active
	if m == nil {
		return to, false
	}
	i, found := m.find(nameOf(to))
	if !found {
		return to, false
	}
	l := m.list(i)
	if l.len() == 0 {
		return to, false
	}
	runtime.Gosched() // a program can be interrupted here
	return m.slot(l.first() + choice%l.len()), true
}

// endpoints returns where connections to an address lead, in the order of the list.
func (f *fake) endpoints(to netip.AddrPort) []netip.AddrPort {
	var all []netip.AddrPort
	for i := 0; ; i++ {
		e, ok := f.connect(to, i)
		if !ok || slices.Contains(all, e) {
			return all
		}
		all = append(all, e)
	}
}
