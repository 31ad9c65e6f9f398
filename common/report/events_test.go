// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/health"
	"kubeproxy/common/metrics"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// recordedEvents runs a scenario and returns the resulting Events in order.
func recordedEvents(t *testing.T, scenario func(h *Events)) []string {
	t.Helper()
	var all []string
	synctest.Test(t, func(t *testing.T) {
		server := &kit.EventSink{}
		h := newEvents(Options{
			API: &rest.Config{Host: "http://api", Transport: server}, Node: "node-a",
			Tracker: track.New(track.Options{}), Build: metrics.Build{GitVersion: "v1"}, Log: klog.Background(),
		}, metrics.New(metrics.Options{}))
		h.problems = func() []track.Problem { return nil }
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			h.Run(ctx)
			close(done)
		}()
		scenario(h)
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		<-done
		for _, q := range server.Written() {
			if e := q.Event; q.Method == http.MethodPost {
				all = append(all, e.Type+" "+e.Reason+" "+e.InvolvedObject.Name+" "+string(e.InvolvedObject.UID)+": "+e.Message)
			}
		}
	})
	return slices.DeleteFunc(all, func(s string) bool {
		return s == "Normal Starting node-a node-a: kube-proxy v1 starts"
	})
}

func newService(name, uid string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(uid)}}
}

func portError(f service.Family, name string, err error) *reconcile.PortError {
	return &reconcile.PortError{Family: f, Name: service.PortName{Namespace: "shop", Name: name, Port: "http", Protocol: service.TCP}, Err: err}
}

const (
	v4, v6          = service.IPv4, service.IPv6
	portFailedEvent = "Warning ServiceNotProgrammed web u1: Node node-a could not program port http/tcp, IPv4: refused"
)

var errRefused = errors.New("refused")

// runRound reports a round and lets a minute pass.
func runRound(h *Events, f service.Family, errs ...error) {
	h.Report(Round{Family: f, Result: reconcile.Result{Generation: 1, Outcome: reconcile.Outcome{Err: errors.Join(errs...)}}})
	time.Sleep(time.Minute)
}

func TestEventsOfPorts(t *testing.T) {
	web := newService("web", "u1")
	for name, tt := range map[string]struct {
		scenario func(h *Events)
		want     []string
	}{
		"all is well": {func(h *Events) { h.setService(web); runRound(h, v4) }, []string{}},
		"a port fails in both families, and comes right": {
			func(h *Events) {
				h.setService(web)
				runRound(h, v4, portError(v4, "web", errRefused))
				runRound(h, v6, portError(v6, "web", errRefused))
				runRound(h, v4)
				runRound(h, v6)
			},
			[]string{
				portFailedEvent,
				"Normal ServiceProgrammed web u1: Node node-a has programmed the Service",
			},
		},
		"many ports": {
			func(h *Events) {
				h.setService(web)
				runRound(h, v4, slices.Repeat([]error{portError(v4, "web", errRefused)}, 5)...)
			},
			[]string{
				portFailedEvent + "; " +
					"port http/tcp, IPv4: refused; port http/tcp, IPv4: refused; and 2 more",
			},
		},
		"the Service goes": {
			func(h *Events) {
				h.setService(web)
				runRound(h, v4, portError(v4, "web", errRefused))
				h.removeService(types.NamespacedName{Namespace: "shop", Name: "web"})
				runRound(h, v4)
			},
			[]string{portFailedEvent},
		},
		"another one comes in its place": {
			func(h *Events) {
				h.setService(web)
				runRound(h, v4, portError(v4, "web", errRefused))
				h.setService(newService("web", "u2"))
				runRound(h, v4)
				runRound(h, v4, portError(v4, "web", errRefused))
			},
			[]string{
				portFailedEvent,
				"Warning ServiceNotProgrammed web u2: Node node-a could not program port http/tcp, IPv4: refused",
			},
		},
	} {
		t.Run(name, func(t *testing.T) { kit.Same(t, "(-want +got)", tt.want, recordedEvents(t, tt.scenario)) })
	}
}

func TestEventsOfRounds(t *testing.T) {
	got := recordedEvents(t, func(h *Events) {
		h.setService(newService("web", "u1"))
		runRound(h, v4, portError(v4, "web", errRefused), errors.New("no netlink"))
		runRound(h, v6, errors.New("none either"))
		runRound(h, v4)
		runRound(h, v6)
	})
	want := []string{
		"Warning RulesNotProgrammed node-a node-a: IPv4: service port shop/web:http (tcp, IPv4): refused; no netlink",
		"Normal RulesProgrammed node-a node-a: All rules are in force again",
	}
	kit.Same(t, "(-want +got)", want, got)
}

func TestEventsOfProblems(t *testing.T) {
	got := recordedEvents(t, func(h *Events) {
		list := []track.Problem{
			{Kind: track.OfNode, Field: "spec.podCIDRs[0]", Message: "of the Node"},
			{Service: types.NamespacedName{Namespace: "shop", Name: "odd"}, Field: "spec.ports[0]", Message: "a"},
			{Service: types.NamespacedName{Namespace: "shop", Name: "odd"}, Field: "spec.ports[1]", Message: "b"},
			{Service: types.NamespacedName{Namespace: "shop", Name: "unknown"}, Field: "spec.ports[1]", Message: "c"},
		}
		h.problems = func() []track.Problem { return list }
		h.setService(newService("odd", "u1"))
		round := func(generation uint64) {
			h.Report(Round{Result: reconcile.Result{Generation: generation}})
			time.Sleep(time.Minute)
		}
		round(1) // there is no unreported problem
		h.problemFound()
		round(1)
		round(2)
		list = nil
		round(3)
		list = []track.Problem{{Service: types.NamespacedName{Namespace: "shop", Name: "odd"}, Field: "spec.ports[2]", Message: "d"}}
		h.problemFound()
		round(3)
	})
	want := []string{
		"Warning ServiceSkipped odd u1: spec.ports[0]: a; spec.ports[1]: b",
		"Warning ServiceSkipped odd u1: spec.ports[2]: d",
	}
	kit.Same(t, "(-want +got)", want, got)
}

func TestEventsOfServers(t *testing.T) {
	got := recordedEvents(t, func(h *Events) {
		web := newService("web", "u1")
		web.Spec.HealthCheckNodePort = 31000
		h.setService(web)
		p := health.CheckProblem{Namespace: "shop", Name: "web", Addr: netip.MustParseAddrPort("0.0.0.0:31000"), Err: errors.New("address in use")}
		h.reportHealthCheck(p)
		other := p
		other.Addr = netip.MustParseAddrPort("[::]:31000")
		h.reportHealthCheck(other)
		h.ReportServer("health", errors.New("taken"))
		h.ReportServer("else", errors.New("taken"))
		time.Sleep(time.Minute)
		p.Err = nil
		h.reportHealthCheck(p)
		h.ReportServer("health", nil)
		time.Sleep(time.Minute)
		other.Err = nil
		h.reportHealthCheck(other)
	})
	slices.Sort(got)
	want := []string{
		"Normal StartedProxierHealthcheck node-a node-a: The health server answers now",
		"Normal StartedServiceHealthcheck web u1: Node node-a answers health checks",
		"Warning FailedToStartProxierHealthcheck node-a node-a: taken",
		"Warning FailedToStartServiceHealthcheck web u1: Node node-a cannot answer health checks: address in use",
	}
	kit.Same(t, "(-want +got)", want, got)
}

func newTestDeprecations(log io.Writer) *deprecations {
	return &deprecations{log: textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log))), uses: map[types.NamespacedName]bool{}}
}

// TestDeprecations expects one warning and one Event for each use.
func TestDeprecations(t *testing.T) {
	var log program.Log
	d := newTestDeprecations(&log)
	got := recordedEvents(t, func(h *Events) {
		set := func(s *corev1.Service) {
			h.setService(s)
			h.reportDeprecation(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, d.update(s))
		}
		web, headless, plain := newService("web", "u1"), newService("headless", "u2"), newService("plain", "u3")
		web.Spec.ExternalIPs, headless.Spec.ExternalIPs = []string{"192.0.2.1"}, []string{"192.0.2.1"}
		headless.Spec.ClusterIP = corev1.ClusterIPNone
		for range 3 {
			set(web)
			set(headless)
			set(plain)
			time.Sleep(time.Minute)
		}
		without := newService("web", "u1")
		set(without)
		warnDeprecatedMode("ipvs", "mode ipvs ends", h, d.log)
		warnDeprecatedMode("nftables", "", h, d.log)
	})
	want := []string{
		"Warning ExternalIPsDeprecation web u1: " + externalIPsText,
		"Warning IPVSDeprecation node-a node-a: mode ipvs ends",
	}
	kit.Same(t, "Events (-want +got)", want, got)
	if n := strings.Count(log.String(), "Warning: "); n != 2 || !strings.Contains(log.String(), `service="shop/web"`) {
		t.Errorf("%d warnings, want one for the Service and one for the mode:\n%s", n, log.String())
	}
	off := newTestDeprecations(&log)
	off.externalIPsIgnored = true
	web := newService("web", "u1")
	web.Spec.ExternalIPs = []string{"192.0.2.1"}
	kit.Equal(t, off.update(web), "", "switched off")
}

// TestDeprecationsOfANamedProxy has the proxy warn that serves the Service, and no other.
func TestDeprecationsOfANamedProxy(t *testing.T) {
	var log program.Log
	for _, name := range []string{"", "mesh", "other"} {
		d := newTestDeprecations(&log)
		d.name = name
		for label, labels := range map[string]map[string]string{"": nil, "mesh": {track.LabelProxyName: "mesh"}} {
			s := newService("web", "u1")
			s.Labels, s.Spec.ExternalIPs = labels, []string{"192.0.2.1"}
			text := d.update(s)
			kit.Check(t, (text != "") == (label == name), "proxy %q of a Service labelled %q: %q", name, label, text)
		}
	}
}

// TestManyDeprecations leave room for other Events.
func TestManyDeprecations(t *testing.T) {
	got := recordedEvents(t, func(h *Events) {
		for i := range 5000 {
			s := newService(fmt.Sprint("s", i), fmt.Sprint("u", i))
			h.setService(s)
			h.reportDeprecation(types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, externalIPsText)
		}
		n := len(h.deprecated)
		kit.Check(t, n == maxDeprecationEvents, "%d Services, want %d", n, maxDeprecationEvents)
	})
	kit.Check(t, len(got) <= maxDeprecationEvents, "%d Events", len(got))
}

// TestNoEventReporter checks that Events without an API server do nothing.
func TestNoEventReporter(t *testing.T) {
	h := newEvents(Options{Tracker: track.New(track.Options{})}, nil)
	kit.Need(t, h.Recorder == nil, "%v", h.Recorder)
	h.setService(newService("web", "u1"))
	h.removeService(types.NamespacedName{})
	h.reportDeprecation(types.NamespacedName{}, "x")
	h.problemFound()
	h.Report(Round{})
	h.reportHealthCheck(health.CheckProblem{})
	h.ReportServer("health", nil)
	h.Run(t.Context())
}

// TestDeletedServicesAreForgotten checks that nothing is kept of a Service that has gone, and
// that a new one of its name is warned of again.
func TestDeletedServicesAreForgotten(t *testing.T) {
	var log program.Log
	d, n := newTestDeprecations(&log), types.NamespacedName{Namespace: "shop", Name: "web"}
	problems := []track.Problem{{Service: n, Field: "spec", Message: "bad"}, {Service: n, Field: "spec", Message: "worse here", ThisNode: true}}
	got := recordedEvents(t, func(h *Events) {
		h.problems = func() []track.Problem { return problems }
		web := newService("web", "u1")
		web.Spec.ExternalIPs, web.Spec.HealthCheckNodePort = []string{"192.0.2.1"}, 7
		for range 2 {
			h.setService(web)
			h.reportDeprecation(n, d.update(web))
			h.reportHealthCheck(health.CheckProblem{Namespace: n.Namespace, Name: n.Name, Err: errRefused})
			h.problemFound()
			runRound(h, v4)
			h.removeService(n)
			d.remove(n)
			kit.Check(t, len(h.uids)+len(h.checkErrors)+len(h.skipped)+len(h.refused)+len(h.deprecated)+len(d.uses) <= 0,
				"kept: %v %v %v %v %v %v", h.uids, h.checkErrors, h.skipped, h.refused, h.deprecated, d.uses)
		}
		d.update(web)
		h.setService(web)
		h.reportHealthCheck(health.CheckProblem{Namespace: n.Namespace, Name: n.Name, Err: errRefused})
		h.problemFound()
		runRound(h, v4)
		problems, web = nil, newService("web", "u1")
		d.update(web)
		h.setService(web)
		h.problemFound()
		runRound(h, v4)
		kit.Check(t, len(h.checkErrors)+len(h.skipped)+len(h.refused)+len(d.uses) <= 0,
			"kept of a Service that was mended: %v %v %v %v", h.checkErrors, h.skipped, h.refused, d.uses)
	})
	kit.Check(t, len(got) >= 3, "Events %q, want one of each sort", got)
	if n := strings.Count(log.String(), "Warning: "); n != 3 {
		t.Errorf("%d warnings, want one for each Service of the name:\n%s", n, log.String())
	}
}
