// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestFaultProxy reads the API server from the node through a FaultProxy.
func TestFaultProxy(t *testing.T) {
	lab, c := start(t, Options{})
	f, err := c.NewFaultProxy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	path, err := c.Kubeconfig(Login{Server: f.URL})
	if err != nil {
		t.Fatal(err)
	}
	client := clientOn(t, lab.Node, path)
	if err := list(t.Context(), client); err != nil {
		t.Fatalf("list, not spoiled: %v", err)
	}
	testBrokenWatch(t, client, func() {
		if err := c.Set(t.Context(), newService("passing", corev1.ServiceSpec{})); err != nil {
			t.Error(err)
		}
	}, f)
	testOtherPathsPass(t, client, f)
	for name, tc := range map[string]struct {
		fault Fault
		ok    func(error) bool
		waits bool // until it gives up
	}{
		"500":    {fault: Fault{Status: http.StatusInternalServerError}, ok: apierrors.IsInternalError},
		"503":    {fault: Fault{Status: http.StatusServiceUnavailable}, ok: apierrors.IsServiceUnavailable},
		"silent": {fault: Fault{Silent: true}, ok: func(err error) bool { return errors.Is(err, context.Canceled) }, waits: true},
		// The client repeats the request after Retry-After.
		"429": {
			fault: Fault{Status: http.StatusTooManyRequests, RetryAfter: time.Minute},
			ok:    func(err error) bool { return err != nil }, waits: true,
		},
		"slow":      {fault: Fault{Delay: 10 * time.Millisecond}, ok: func(err error) bool { return err == nil }},
		"truncated": {fault: Fault{Cut: 100}, ok: func(err error) bool { return err != nil && !strings.Contains(err.Error(), "connection") }},
		"reset": {
			fault: Fault{Cut: 100, Reset: true},
			ok:    func(err error) bool { return err != nil && strings.Contains(err.Error(), "connection reset") },
		},
		"only some": {fault: Fault{Status: http.StatusForbidden, Only: "/services"}, ok: apierrors.IsForbidden},
		"none":      {ok: func(err error) bool { return err == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			f.SetFault(tc.fault)
			before := f.FaultCount()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if tc.waits {
				go giveUp(ctx, cancel, func() bool { return f.FaultCount() > before })
			}
			if err := list(ctx, client); !tc.ok(err) {
				t.Errorf("list: %v", err)
			}
			if got, want := f.FaultCount() > before, tc.fault != (Fault{}); got != want {
				t.Errorf("spoiled %d requests, before %d", f.FaultCount(), before)
			}
		})
	}
}

// giveUp ends ctx a second after something has happened.
func giveUp(ctx context.Context, cancel func(), happened func() bool) {
	for ctx.Err() == nil {
		if happened() {
			time.AfterFunc(time.Second, cancel)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// testBrokenWatch receives an event at once and then the end of the watch.
func testBrokenWatch(t *testing.T, client kubernetes.Interface, change func(), f *FaultProxy) {
	t.Helper()
	w, err := client.CoreV1().Services(space).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	change()
	for event := range w.ResultChan() {
		if s, ok := event.Object.(*corev1.Service); ok && s.Name == "passing" {
			break
		}
	}
	f.SetFault(Fault{Status: http.StatusServiceUnavailable})
	for event := range w.ResultChan() {
		if _, ok := event.Object.(*corev1.Service); ok {
			t.Errorf("event %v after the watch was spoiled", event)
		}
	}
}

// testOtherPathsPass spoils paths that the client does not request.
func testOtherPathsPass(t *testing.T, client kubernetes.Interface, f *FaultProxy) {
	t.Helper()
	f.SetFault(Fault{Status: http.StatusForbidden, Only: "/nodes"})
	before := f.FaultCount()
	if err := list(t.Context(), client); err != nil || f.FaultCount() != before {
		t.Errorf("list while something else is spoiled: %v, %d requests spoiled", err, f.FaultCount()-before)
	}
}
