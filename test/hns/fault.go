// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"fmt"
	"path"
	"time"
)

// Fault makes calls of the program under test fail. A call fails with the first fault
// that matches it.
type Fault struct {
	// Function is a pattern: "HcnCreateEndpoint", "HcnCreate*", "*".
	Function string
	Code     Code
	When     When
	// Count is how many calls fail, 0 for no end.
	Count int
	// Share is the share of calls that fail, from 0 to 1 and chosen at random, 0 for all.
	Share float64
}

// When is the moment at which a call fails.
type When string

// The moments of a failure. With Afterwards the call has its full effect, and only its
// answer is lost: the caller does not know the new object.
const (
	Instead    When = ""
	Afterwards When = "afterwards"
)

// Check returns what is wrong with a fault.
func (f Fault) Check() error {
	if _, err := path.Match(f.Function, ""); err != nil || f.Function == "" {
		return fmt.Errorf("fault in function %q: want a pattern such as HcnCreate*", f.Function)
	}
	if f.Code == OK || f.Count < 0 || f.Share < 0 || f.Share > 1 || f.When != Instead && f.When != Afterwards {
		return fmt.Errorf("fault in function %s: want a code, a count from 0 and a share from 0 to 1, instead or afterwards", f.Function)
	}
	return nil
}

// Inject makes calls fail from now on.
func (s *Simulator) Inject(faults ...Fault) error {
	for _, f := range faults {
		if err := f.Check(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range faults {
		s.faults = append(s.faults, &f)
	}
	return nil
}

// ClearFaults removes all faults and delays.
func (s *Simulator) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.delays = nil, nil
}

// fault returns the codes with which a call must fail: before it has an effect, and
// after.
func (s *Simulator) fault(function string) (before, after Code) {
	for _, f := range s.faults {
		if !fits(f.Function, function) || f.Count < 0 || f.Share > 0 && s.random.Float64() >= f.Share {
			continue
		}
		if f.Count > 0 {
			f.Count = cmp.Or(f.Count-1, -1)
		}
		if f.When == Afterwards {
			return OK, f.Code
		}
		return f.Code, OK
	}
	return OK, OK
}

func fits(pattern, function string) bool {
	ok, err := path.Match(pattern, function)
	return err == nil && ok
}

type delay struct {
	function string
	time     time.Duration
}

// Delay delays each call of the program under test that matches a pattern. The last
// matching delay applies.
func (s *Simulator) Delay(function string, each time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delays = append(s.delays, delay{function, each})
}

func (s *Simulator) delay(function string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var each time.Duration
	if fits("HcnDelete*", function) {
		each = s.options.Personality.SlowDeletes
	}
	for _, d := range s.delays {
		if fits(d.function, function) {
			each = d.time
		}
	}
	return each
}

// Survivors are the objects that survive an interruption of HNS.
type Survivors string

// HNS keeps its objects in a file, so that usually all survive with the same identities.
// After a worse failure, CNI creates networks and pods again, and the rest is gone.
const (
	Everything Survivors = ""
	Pods       Survivors = "pods" // networks and endpoints that are not remote
	Nothing    Survivors = "nothing"
)

// Stop stops HNS: connections break, and each call fails with answer until Start. The
// usual answers are ServerUnavailable and UnknownInterface.
func (s *Simulator) Stop(answer Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = answer
	s.peers.drop()
}

// Start starts HNS again, without its former handles.
func (s *Simulator) Start(keep Survivors) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = OK
	s.handles, s.lastStaleHandle = map[uint64]handle{}, s.opened
	for _, kind := range Kinds() {
		for _, o := range s.store[kind].all() {
			o.restored = true
			local := kind == Network || kind == Endpoint && !o.doc.Remote()
			if keep == Nothing || keep == Pods && !local {
				s.drop(kind, o)
			} else if kind == LoadBalancer && s.options.Personality.RenewsIDs {
				s.drop(kind, o)
				o.doc["ID"] = guid()
				s.put(kind, o)
			}
		}
	}
}

// Restart is Stop and Start.
func (s *Simulator) Restart(keep Survivors) {
	s.Stop(UnknownInterface)
	s.Start(keep)
}

// DropConnections breaks all connections: calls that wait for an answer fail, whether
// they were carried out or not.
func (s *Simulator) DropConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers.drop()
}
