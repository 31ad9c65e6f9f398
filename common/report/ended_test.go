// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// TestEnded has connections to two endpoints end, and looks at what is shown until it is old.
func TestEnded(t *testing.T) {
	to := func(address, why string, count int) track.Ending {
		return track.Ending{Connection: track.Connection{
			Port:     service.PortName{Namespace: "shop", Name: "web", Port: "http", Protocol: service.TCP},
			Endpoint: service.AddressOf(service.TCP, netip.MustParseAddrPort(address)),
		}, Why: why, Count: count}
	}
	got := recordedEvents(t, func(ev *Events) {
		ev.setService(newService("web", "u1"))
		e := &Ended{events: ev, log: klog.Background(), all: map[track.Ending]*ending{}, reported: map[types.NamespacedName]bool{}}
		start := time.Now().UTC()
		check := func(what string, list ...servicestate.EndedConnections) {
			t.Helper()
			kit.Same(t, what+" (-want +got)", list, e.List())
		}
		listed := func(address, why string, count int, last time.Duration) servicestate.EndedConnections {
			return servicestate.EndedConnections{
				PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "web", Port: "http", Address: address}, Connections: count, Since: start, Last: start.Add(last), Why: why,
			}
		}
		e.Begun(nil)
		check("none")
		e.Begun([]track.Ending{to("10.244.1.2:80", "gone", 2), to("10.244.1.1:80", "dead", 3)})
		time.Sleep(endedFor)
		e.Begun([]track.Ending{to("10.244.1.1:80", "dead", 4)})
		check("both", listed("10.244.1.1:80", "dead", 7, endedFor), listed("10.244.1.2:80", "gone", 2, 0))
		time.Sleep(time.Second)
		check("one is old", listed("10.244.1.1:80", "dead", 7, endedFor))
		kit.Same(t, "notes (-want +got)", []string{
			"since 2000-01-01T00:00:00Z the proxy ended connections to 10.244.1.1:80, 7 up to 00:10:00: dead",
		}, e.Notes("shop/web"))
		notes := e.Notes("shop/api")
		kit.Check(t, len(notes) == 0, "notes of another: %q", notes)
		time.Sleep(endedFor)
		check("all are old")
	})
	kit.Same(t, "Events (-want +got)", []string{"Normal ConnectionsEnded web u1: Connections to endpoints end. 10.244.1.1:80: dead, 10.244.1.2:80: gone"}, got)
}
