// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/common/silence"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// TestSilent follows two endpoints that fall silent and answer again. One of them is in two
// Services, of which one keeps it.
func TestSilent(t *testing.T) {
	at := func(i byte) service.Address {
		return service.AddressOf(service.TCP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, i}), 8080))
	}
	use := func(i byte, name string, out bool) track.SilentUse {
		return track.SilentUse{Endpoint: at(i), Port: service.PortName{Namespace: "shop", Name: name, Port: "http", Protocol: service.TCP}, LeftOut: out}
	}
	since := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	record := silence.Record{Since: since, Why: "no answer"}
	listed := func(i byte, name string, out bool) servicestate.SilentEndpoint {
		return servicestate.SilentEndpoint{
			PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: name, Port: "http", Protocol: "tcp", Address: fmt.Sprintf("10.244.1.%d:8080", i)}, LeftOut: out, Since: since, Why: "no answer",
		}
	}
	got := recordedEvents(t, func(ev *Events) {
		ev.setService(newService("web", "u1"))
		ev.setService(newService("api", "u2"))
		s := &Silent{uses: func() []track.SilentUse {
			return []track.SilentUse{use(2, "web", false), use(1, "web", false), use(1, "api", true)}
		}, events: ev, log: klog.Background(), reported: map[types.NamespacedName]bool{}}
		check := func(what string, want metrics.Silent, list ...servicestate.SilentEndpoint) {
			kit.Same(t, what+", list (-want +got)", list, s.List())
			kit.Same(t, what+", metrics (-want +got)", want, s.count())
			time.Sleep(time.Minute)
		}
		check("none", metrics.Silent{})
		s.Changed(map[service.Address]silence.Record{at(1): record})
		check("one", metrics.Silent{LeftOut: 1, Fell: 1}, listed(1, "api", true), listed(1, "web", false))
		s.Changed(map[service.Address]silence.Record{at(1): record, at(2): record})
		check("both", metrics.Silent{LeftOut: 1, Kept: 1, Fell: 2}, listed(1, "api", true), listed(1, "web", false), listed(2, "web", false))
		s.Changed(map[service.Address]silence.Record{at(2): record})
		check("the other", metrics.Silent{Kept: 1, Fell: 2, Over: 1}, listed(2, "web", false))
		s.Changed(nil)
		check("none again", metrics.Silent{Fell: 2, Over: 2})
	})
	slices.Sort(got)
	kit.Same(t, "Events (-want +got)", []string{
		"Normal EndpointsAnswer api u2: All endpoints answer, or those that did not are gone",
		"Normal EndpointsAnswer web u1: All endpoints answer, or those that did not are gone",
		"Warning EndpointsSilent api u2: Endpoints do not answer while others do: 10.244.1.1:8080",
		"Warning EndpointsSilent web u1: Endpoints do not answer while others do: 10.244.1.1:8080",
	}, got)
}
