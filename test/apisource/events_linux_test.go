// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"kubeproxy/common/events"
	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// deployed is the account of the deployment. Its certificate says what a pod's
// token says.
var deployed = cluster.Login{User: "system:serviceaccount:kube-system:kubeproxy", Groups: []string{"system:serviceaccounts"}}

// checkPort and otherCheckPort are of the first 86 ports for NodePorts. Those
// the API server gives away last by itself, so that the NodePort that it draws
// for the same Service, or another's, is never one of them.
const (
	checkPort      = 30009
	otherCheckPort = 30008
)

// TestEvents writes Events as whom the deployment makes, with its rights and
// without.
func TestEvents(t *testing.T) {
	t.Parallel()
	began := time.Now()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	w.set(t, newNode())
	checked := newService("checked")
	checked.Spec.Type, checked.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	checked.Spec.HealthCheckNodePort = checkPort
	w.set(t, checked)
	for _, name := range []string{"first", "second"} { // who comes second cannot have it
		s := newService(name)
		s.Spec.ExternalIPs = []string{"198.51.100.7"}
		w.set(t, s)
	}
	objects := kit.ReadFile(t, filepath.Join("..", "..", "build", "deploy", "linux", "objects.yaml"))
	account, _, _ := strings.Cut(string(objects), "---\napiVersion: apps/v1\n") // without the DaemonSet
	taken := takePort(t, w.lab.Node, checkPort)

	t.Run("forbidden", func(t *testing.T) { testEventsForbidden(t, w, account) })
	kit.Must(t, w.Apply(t.Context(), []byte(account)))
	p := w.start(t, deployed)
	kit.Until(t, "the node starts", func() bool { return w.event(t, "Starting") != nil })
	node := w.event(t, "Starting")
	if node.InvolvedObject.Kind != "Node" || node.InvolvedObject.UID != netlab.NodeName || node.Namespace != "default" || node.Source.Host != netlab.NodeName {
		t.Errorf("Starting: %+v of %+v", node.InvolvedObject, node.Source)
	}
	t.Run("counted and shared", func(t *testing.T) { testEventsCounted(t, w) })
	t.Run("health check", func(t *testing.T) { testEventOfCheck(t, w, taken) })
	t.Run("many nodes", func(t *testing.T) { testEventOfMany(t, w, began) })
	n, _ := p.Metric(t, "kubeproxy_events_written_total")
	kit.Check(t, n >= 2, "%v Events written by this node, want two at least", n)
	if n, _ := p.Metric(t, "kubeproxy_events_dropped_total"); n != 0 {
		t.Errorf("%v Events dropped, want none", n)
	}
	p.Stop(t)
}

// testEventsForbidden runs with everything but the right to write Events.
func testEventsForbidden(t *testing.T, w fixture, account string) {
	const rule = "- apiGroups: [\"\"] # of the proxy"
	before, after, ok := strings.Cut(account, rule)
	kit.Need(t, ok, "no rule about events in\n%s", account)
	_, after, _ = strings.Cut(after, "---\n")
	kit.Must(t, w.Apply(t.Context(), []byte(before+"---\n"+after)))
	p := w.start(t, deployed)
	p.AwaitLog(t, "An Event could not be written", "forbidden")
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	kit.Until(t, "it is counted", func() bool {
		n, _ := p.Metric(t, "kubeproxy_events_dropped_total", "reason", "forbidden")
		return n > 0
	})
	kit.Until(t, "the check fails", func() bool { return p.Log.Has("A health check of a Service is not served") })
	if n := p.Log.Count("An Event could not be written"); n != 1 {
		t.Errorf("said %d times, want once", n)
	}
	all := w.events(t)
	kit.Check(t, len(all) == 0, "Events all the same: %v", all)
	p.Stop(t)
}

func testEventOfCheck(t *testing.T, w fixture, taken func()) {
	kit.Until(t, "the taken port is reported", func() bool { return w.event(t, "FailedToStartServiceHealthcheck") != nil })
	e := w.event(t, "FailedToStartServiceHealthcheck")
	s, err := w.Client.CoreV1().Services(namespace).Get(t.Context(), "checked", metav1.GetOptions{})
	kit.Must(t, err)
	want := corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: "checked", UID: s.UID}
	if e.InvolvedObject != want || e.Type != "Warning" || e.ReportingInstance != netlab.NodeName || !strings.Contains(e.Message, "Node node-a") || !strings.Contains(e.Message, "address already in use") {
		t.Errorf("%+v: %s %s %s", e.InvolvedObject, e.Type, e.ReportingInstance, e.Message)
	}
	taken()
	kit.Until(t, "the free port is reported", func() bool { return w.event(t, "StartedServiceHealthcheck") != nil })
	again := takePort(t, w.lab.Node, otherCheckPort)
	defer again()
	s.Spec.HealthCheckNodePort = otherCheckPort // cannot be changed, so it is another Service
	s.ObjectMeta = metav1.ObjectMeta{Namespace: namespace, Name: "checked"}
	s.Spec.Ports[0].NodePort, s.Spec.ClusterIP, s.Spec.ClusterIPs = 0, "", nil
	kit.Must(t, w.Delete(t.Context(), s))
	w.set(t, s)
	kit.Until(t, "the next Service has an Event of its own", func() bool {
		return slices.ContainsFunc(w.events(t), func(e corev1.Event) bool {
			return e.Reason == "FailedToStartServiceHealthcheck" && e.InvolvedObject.UID == s.UID
		})
	})
}

// testEventOfMany starts a second node, which sees the same mistake.
func testEventOfMany(t *testing.T, w fixture, began time.Time) {
	args := []string{"--kubeconfig=" + w.kubeconfig(t, deployed), "--cluster-cidr=" + netlab.ClusterCIDR, "--hostname-override=node-b"}
	other := kubeProxy.Start(t, w.lab.Host("control"), args...)
	seen := func(p string) bool {
		return slices.ContainsFunc(w.events(t), func(e corev1.Event) bool { return e.Reason == "Starting" && e.InvolvedObject.Name == p })
	}
	kit.Until(t, "node-b starts", func() bool { return seen("node-b") })
	// Both nodes have written by the time that each has had its turn, half a
	// minute at most; the first is usually sooner.
	for range 3 {
		if kit.Soon(func() bool { return w.event(t, "ServiceSkipped") != nil }) {
			break
		}
	}
	e := w.event(t, "ServiceSkipped")
	// The API server's times are whole seconds, so both may be of the same.
	first := regexp.MustCompile(`belongs to service default/first, (which was there first|whose name sorts first, as both are of the same time)$`)
	kit.Need(t, e != nil && e.InvolvedObject.Name == "second" && first.MatchString(e.Message) && e.Source.Host == "",
		"ServiceSkipped: %+v", e)
	other.Stop(t)
	n := 0
	for _, e := range w.events(t) {
		if e.Reason == "ServiceSkipped" {
			n++
		}
	}
	most := shared(began)
	kit.Check(t, n >= 1 && n <= most, "%d Events about one mistake, want one and at most %d", n, most)
}

// shared is how many Events there may be since a time about what nodes share one
// Event about: one in each hour, and a new one may have begun.
func shared(since time.Time) int {
	return 1 + int(time.Now().Truncate(time.Hour).Sub(since.Truncate(time.Hour))/time.Hour)
}

// takePort takes a port on h until the function it returns is called.
func takePort(t *testing.T, h *netlab.Host, port int) (leave func()) {
	t.Helper()
	l, err := h.Listen(t.Context(), "tcp4", fmt.Sprintf("0.0.0.0:%d", port))
	kit.Must(t, err)
	leave = func() { _ = l.Close() }
	t.Cleanup(leave)
	return leave
}

func (w fixture) events(t *testing.T) []corev1.Event {
	t.Helper()
	list, err := w.Client.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.Source.Component != "kube-proxy" })
}

// event returns the first Event with the reason, nil if there is none.
func (w fixture) event(t *testing.T, reason string) *corev1.Event {
	t.Helper()
	for _, e := range w.events(t) {
		if e.Reason == reason {
			return &e
		}
	}
	return nil
}

// newRecorder makes a Recorder that runs on a node, and a count of what the
// API server took of it.
func (w fixture) newRecorder(t *testing.T, node string) (*events.Recorder, *atomic.Int32) {
	t.Helper()
	to, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig(t, deployed))
	kit.Must(t, err)
	to.Dial = w.lab.Node.Dial
	to.ContentType, to.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	written := &atomic.Int32{}
	r, err := events.New(events.Options{
		Config: to, Node: node, Spread: time.Millisecond,
		Report:  func(err error) { t.Errorf("%s: %v", node, err) },
		Written: func() { written.Add(1) },
	})
	kit.Must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		r.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return r, written
}

// testEventsCounted has two nodes see one mistake and one of them a failure
// that recurs.
func testEventsCounted(t *testing.T, w fixture) {
	began := time.Now()
	mistake := events.Topic{Reason: "TestMistake", Scope: events.Cluster}
	broken := events.Topic{Reason: "TestBroken", RecoveredReason: "TestMended"}
	about := events.Object{Kind: "Service", Namespace: namespace, Name: "counted", UID: "5c0ffee0-0000-4000-8000-000000000000"}
	a, writtenA := w.newRecorder(t, "node-a")
	b, writtenB := w.newRecorder(t, "node-b")
	a.Failed(about, mistake, "the same")
	b.Failed(about, mistake, "the same")
	b.Failed(about, broken, "first")
	kit.Until(t, "b reports its own failure", func() bool { return w.event(t, "TestBroken") != nil })
	kit.Until(t, "one reports the mistake", func() bool { return writtenA.Load()+writtenB.Load() >= 2 })
	b.Recovered(about, broken, "mended")
	// b reports this later, so it has handled the mistake before.
	kit.Until(t, "b reports that it is over", func() bool { return w.event(t, "TestMended") != nil })
	b.Failed(about, broken, "second")
	kit.Until(t, "the failure is counted", func() bool {
		e := w.event(t, "TestBroken")
		return e.Count == 2 && e.Message == "second" && e.ReportingInstance == "node-b" && e.InvolvedObject.UID == about.UID
	})
	kit.Until(t, "the recorders hear of it", func() bool { return writtenA.Load()+writtenB.Load() >= 4 })
	n := map[string]int{}
	for _, e := range w.events(t) {
		n[e.Reason]++
	}
	mistakes, most := n["TestMistake"], shared(began)
	if mistakes < 1 || mistakes > most || n["TestBroken"] != 1 || int(writtenA.Load()+writtenB.Load()) != 3+mistakes {
		t.Errorf("Events %v, written by a %d, by b %d; want one of each, at most %d of the mistake, and three writings more",
			n, writtenA.Load(), writtenB.Load(), most)
	}
}
