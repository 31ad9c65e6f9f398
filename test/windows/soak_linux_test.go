// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"kubeproxy/test/hns"
)

// soak is a node with continuous changes and faults.
type soak struct {
	*node
	random *rand.Rand
	apps   map[int]app
}

// TestSoak makes random changes and faults for a while, and then requires the desired
// state without leftovers. To repeat a run, use the seed in its log.
func TestSoak(t *testing.T) {
	for i, v := range []hns.Version{{Major: 13, Minor: 3}, {Major: 15, Minor: 5}} {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano()) + uint64(i)
			t.Logf("seed %d", seed)
			s := &soak{newNode(t, hns.Options{Version: v, Seed: seed}), rand.New(rand.NewPCG(seed, 1)), map[int]app{}}
			s.installForeign(t)
			s.start(t)
			events := 0
			for end := time.Now().Add(*soakFor / 2); time.Now().Before(end); events++ {
				s.step(t)
				time.Sleep(time.Duration(s.random.IntN(150)) * time.Millisecond)
			}
			s.hns.ClearFaults()
			s.hns.Start(hns.Everything)
			var apps []app
			for _, a := range s.apps {
				apps = append(apps, a)
			}
			s.awaitProgrammed(t, apps...)
			s.awaitIdle(t)
			s.awaitProgrammed(t, apps...)
			s.stop(t)
			t.Logf("%d events, %s", events, s.hns.Calls())
		})
	}
}

// step makes one change or fault. Changes of Services are the most frequent.
func (s *soak) step(t *testing.T) {
	t.Helper()
	switch n := s.random.IntN(20); n {
	case 0:
		s.process.Kill()
		s.start(t)
	case 1:
		s.hns.Restart(hns.Everything)
	case 2:
		s.hns.DropConnections()
	case 3:
		s.hns.Stop(hns.ServerUnavailable)
	case 4, 5:
		s.hns.Start(hns.Everything)
	case 6, 7, 8:
		s.fault(t)
	case 9:
		s.hns.ClearFaults()
	case 10:
		s.hns.Delay("Hcn*", time.Duration(s.random.IntN(5))*time.Millisecond)
	case 11:
		s.deleteOne(t)
	default:
		s.change(t)
	}
}

func (s *soak) fault(t *testing.T) {
	t.Helper()
	f := hns.Fault{
		Function: pick(s, "HcnCreate*", "HcnDelete*", "HcnEnumerate*", "HcnModify*", "HcnQuery*", "Hcn*"),
		Code:     pick(s, hns.ServerUnavailable, hns.UnknownInterface, hns.PortNotFound, hns.GeneralFailure, hns.PortExists),
		When:     pick(s, hns.Instead, hns.Afterwards),
		Count:    1 + s.random.IntN(4),
		Share:    0.5,
	}
	if err := s.hns.Inject(f); err != nil {
		t.Fatal(err)
	}
}

func pick[T any](s *soak, choices ...T) T { return choices[s.random.IntN(len(choices))] }

// deleteOne deletes a load balancer of ours, as another program would.
func (s *soak) deleteOne(t *testing.T) {
	t.Helper()
	lbs := slices.DeleteFunc(s.hns.Objects(hns.LoadBalancer), func(lb hns.Document) bool {
		return slices.Contains(lb.VIPs(), "172.30.0.1")
	})
	if len(lbs) == 0 {
		return
	}
	// The proxy may have deleted it.
	_ = s.hns.Delete(hns.LoadBalancer, pick(s, lbs...).ID())
}

// change adds a Service, removes it or gives it other endpoints.
func (s *soak) change(t *testing.T) {
	t.Helper()
	number := 1 + s.random.IntN(12)
	a, there := s.apps[number]
	if there && s.random.IntN(4) == 0 {
		s.remove(t, a)
		delete(s.apps, number)
		return
	}
	pods := slices.Clone(locals)
	for i := range 8 {
		pods = append(pods, fmt.Sprintf("10.244.2.%d", 11+i))
	}
	s.random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	a = app{fmt.Sprintf("app-%d", number), number, pods[:1+s.random.IntN(4)]}
	s.apps[number] = a
	s.save(t, a)
}
