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

// TestFront looks at the API server from the node through a front.
func TestFront(t *testing.T) {
	lab, c := start(t, Options{})
	f, err := c.NewFront(t.Context())
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
	testOthersPass(t, client, f)
	for name, tc := range map[string]struct {
		fault Fault
		ok    func(error) bool
	}{
		"500":    {Fault{Status: http.StatusInternalServerError}, apierrors.IsInternalError},
		"503":    {Fault{Status: http.StatusServiceUnavailable}, apierrors.IsServiceUnavailable},
		"silent": {Fault{Silent: true}, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
		// The client comes again when it was told to, until it gives up.
		"429": {
			Fault{Status: http.StatusTooManyRequests, RetryAfter: time.Minute},
			func(err error) bool { return err != nil },
		},
		"slow":      {Fault{Delay: 10 * time.Millisecond}, func(err error) bool { return err == nil }},
		"truncated": {Fault{Cut: 100}, func(err error) bool { return err != nil && !strings.Contains(err.Error(), "connection") }},
		"reset": {
			Fault{Cut: 100, Reset: true}, func(err error) bool { return err != nil && strings.Contains(err.Error(), "connection reset") },
		},
		"only some": {Fault{Status: http.StatusForbidden, Only: "/services"}, apierrors.IsForbidden},
		"none":      {Fault{}, func(err error) bool { return err == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			f.Spoil(tc.fault)
			before := f.Spoiled()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if err := list(ctx, client); !tc.ok(err) {
				t.Errorf("list: %v", err)
			}
			if got, want := f.Spoiled() > before, tc.fault != (Fault{}); got != want {
				t.Errorf("spoiled %d requests, before %d", f.Spoiled(), before)
			}
		})
	}
}

// testBrokenWatch gets an event at once and then the watch's end.
func testBrokenWatch(t *testing.T, client kubernetes.Interface, change func(), f *Front) {
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
	f.Spoil(Fault{Status: http.StatusServiceUnavailable})
	for event := range w.ResultChan() {
		if _, ok := event.Object.(*corev1.Service); ok {
			t.Errorf("event %v after the watch was spoiled", event)
		}
	}
}

// testOthersPass spoils what the client does not ask for.
func testOthersPass(t *testing.T, client kubernetes.Interface, f *Front) {
	t.Helper()
	f.Spoil(Fault{Status: http.StatusForbidden, Only: "/nodes"})
	before := f.Spoiled()
	if err := list(t.Context(), client); err != nil || f.Spoiled() != before {
		t.Errorf("list while something else is spoiled: %v, %d requests spoiled", err, f.Spoiled()-before)
	}
}
