// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"kubeproxy/common/events"
	"kubeproxy/test/kit"
)

// newRecorder makes a Recorder that runs on a node, and a count of what the
// API server took of it.
func (w fixture) newRecorder(t *testing.T, node string) (*events.Recorder, *atomic.Int32) {
	t.Helper()
	to, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig(t, deployed))
	if err != nil {
		t.Fatal(err)
	}
	to.Dial = w.lab.Node.Dial
	to.ContentType, to.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	written := &atomic.Int32{}
	r, err := events.New(events.Options{
		Config: to, Node: node, Spread: time.Millisecond,
		Report:  func(err error) { t.Errorf("%s: %v", node, err) },
		Written: func() { written.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
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
