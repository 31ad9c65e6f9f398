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

func (k *fake) fail(call string) error {
	if k.crashes == call {
		panic(backendtest.ErrCrash)
	}
	if k.fails[call] {
		return errInjected
	}
	return nil
}

func (k *fake) Adopt() (*Memory, error) { return k.active, k.fail("Adopt") }

func (k *fake) Build(frontends, slots int) (*Memory, error) {
	w := words[k.family]
	var seed uint64
	if len(k.seeds) > 0 {
		seed, k.seeds = k.seeds[0], k.seeds[1:]
	}
	k.built = &Memory{family: k.family, seed: seed, frontends: make([]uint64, frontends*(w+1)), slots: make([]uint64, slots*w)}
	return k.built, k.fail("Build")
}

func (k *fake) Activate() error {
	if err := k.fail("Activate"); err != nil {
		return err
	}
	k.programs.Lock()
	defer k.programs.Unlock()
	k.active, k.built, k.detached, k.followed = k.built, nil, nil, k.pods
	return nil
}

func (k *fake) Attached() error { return k.detached }

func (k *fake) Moved() (string, error) {
	if k.pods == k.followed {
		return "", k.fail("Moved")
	}
	return "the cgroup of all pods is " + k.pods, k.fail("Moved")
}

func (k *fake) Follow() error {
	k.followed = k.pods
	return k.fail("Follow")
}

func (k *fake) Barrier() error {
	k.programs.Lock()
	defer k.programs.Unlock()
	k.barriers++
	return k.fail("Barrier")
}

func (k *fake) Inspect() (*State, error) {
	if k.active == nil {
		return nil, k.fail("Inspect")
	}
	s := &State{Memory: k.active, Pods: k.followed != "", Others: k.unknown}
	if k.detached != nil {
		s.Fault = k.detached.Error()
	}
	return s, k.fail("Inspect")
}

func (k *fake) Others() (Others, error) {
	if k.strays > 0 {
		return Others{Strays: k.strays, Text: "strays"}, k.fail("Others")
	}
	return Others{Text: k.unknown}, k.fail("Others")
}

func (k *fake) Evict() error {
	if err := k.fail("Evict"); err != nil {
		return err
	}
	k.strays = 0
	return nil
}

func (k *fake) Installed() (bool, error) { return k.active != nil, k.fail("Installed") }

func (k *fake) Remove() error {
	if err := k.fail("Remove"); err != nil {
		return err
	}
	k.active = nil
	return nil
}

func (k *fake) Release() {}

func (k *fake) Taken() (Taken, error) { return k.taken, k.fail("Taken") }

// connect does what the programs do, and returns the endpoint with number choice.
func (k *fake) connect(to netip.AddrPort, choice int) (netip.AddrPort, bool) {
	k.programs.RLock()
	defer k.programs.RUnlock()
	m := k.active
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
func (k *fake) endpoints(to netip.AddrPort) []netip.AddrPort {
	var all []netip.AddrPort
	for i := 0; ; i++ {
		e, ok := k.connect(to, i)
		if !ok || slices.Contains(all, e) {
			return all
		}
		all = append(all, e)
	}
}
