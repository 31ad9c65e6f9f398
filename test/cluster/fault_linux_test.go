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
	"k8s.io/client-go/tools/clientcmd"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// clientOn returns the client of a program on h with the kubeconfig.
func clientOn(t *testing.T, h *netlab.Host, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	kit.Must(t, err)
	config.Dial = h.Dial
	client, err := kubernetes.NewForConfig(config)
	kit.Must(t, err)
	return client
}

func list(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	return err
}

// TestLogins connects from the node, as the proxy does.
func TestLogins(t *testing.T) {
	lab, c := start(t, Options{Authorization: RBAC})
	for name, tc := range map[string]struct {
		login Login
		ok    func(error) bool
	}{
		"administrator":       {Login{}, func(err error) bool { return err == nil }},
		"wrong token":         {Login{Token: "wrong"}, apierrors.IsUnauthorized},
		"proxy":               {Login{User: "system:kube-proxy"}, func(err error) bool { return err == nil }},
		"somebody":            {Login{User: "somebody"}, apierrors.IsForbidden},
		"group of masters":    {Login{User: "somebody", Groups: []string{"system:masters"}}, func(err error) bool { return err == nil }},
		"expired certificate": {Login{User: "system:kube-proxy", Until: time.Now().Add(-time.Hour)}, apierrors.IsUnauthorized},
		"nobody there": {
			Login{Server: "https://192.0.2.100:1"}, func(err error) bool { return err != nil && strings.Contains(err.Error(), "connection refused") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := c.Kubeconfig(tc.login)
			kit.Must(t, err)
			if err := list(t.Context(), clientOn(t, lab.Node, path)); !tc.ok(err) {
				t.Errorf("list of Services: %v", err)
			}
		})
	}
	t.Run("server's certificate expired", func(t *testing.T) { testExpiredServer(t, lab, c) })
}

func testExpiredServer(t *testing.T, lab *netlab.Lab, c *Cluster) {
	path, err := c.Kubeconfig(Login{})
	kit.Must(t, err)
	for _, step := range []struct {
		until time.Duration
		ok    func(error) bool
	}{
		{-time.Hour, func(err error) bool { return err != nil && strings.Contains(err.Error(), "expired") }},
		{time.Hour, func(err error) bool { return err == nil }},
	} {
		kit.Must(t, c.SetServerCertificate(time.Now().Add(step.until)))
		kit.Until(t, "the certificate's change", func() bool {
			return step.ok(list(t.Context(), clientOn(t, lab.Node, path)))
		})
	}
}

// TestFaults shares one control plane, which each case leaves in order.
func TestFaults(t *testing.T) {
	_, c := start(t, Options{})
	kept := newService("kept", corev1.ServiceSpec{})
	kit.Must(t, c.Set(t.Context(), kept))
	for name, test := range map[string]func(*testing.T, *Cluster){
		"API server killed":  testKilled,
		"API server paused":  testPaused,
		"versions forgotten": testCompacted,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, c)
			now, err := c.Client.CoreV1().Services(space).Get(t.Context(), kept.Name, metav1.GetOptions{})
			if err != nil || now.Spec.ClusterIP != kept.Spec.ClusterIP {
				t.Errorf("afterwards the Service has ClusterIP %q, error %v; want %q", now.Spec.ClusterIP, err, kept.Spec.ClusterIP)
			}
		})
	}
}

func testKilled(t *testing.T, c *Cluster) {
	c.APIServer.Kill()
	if err := list(t.Context(), c.Client); err == nil {
		t.Error("a killed API server answers")
	}
	kit.Must(t, c.APIServer.Start(t.Context()))
	if err := c.APIServer.Start(t.Context()); err == nil {
		t.Error("second Start: no error, want one that says it runs")
	}
}

func testPaused(t *testing.T, c *Cluster) {
	kit.Must(t, c.APIServer.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := list(ctx, c.Client); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("paused: %v, want silence", err)
	}
	kit.Must(t, c.APIServer.Resume())
}

// testCompacted continues a watch from a version that was compacted.
func testCompacted(t *testing.T, c *Cluster) {
	old, err := c.Client.CoreV1().Services(space).List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	for _, name := range []string{"one", "two"} {
		kit.Must(t, c.Set(t.Context(), newService(name, corev1.ServiceSpec{})))
	}
	kit.Must(t, c.Compact(t.Context()))
	at := map[string]any{"key": []byte("/"), "limit": 1, "revision": old.ResourceVersion}
	if err := c.etcd(t.Context(), http.MethodPost, "/v3/kv/range", at, &struct{}{}); err == nil || !strings.Contains(err.Error(), "compacted") {
		t.Errorf("read of revision %s: %v, want one that says compacted", old.ResourceVersion, err)
	}
	kit.Must(t, errors.Join(c.Etcd.Restart(t.Context()), c.APIServer.Restart(t.Context())))
	w, err := c.Client.CoreV1().Services(space).Watch(t.Context(), metav1.ListOptions{ResourceVersion: old.ResourceVersion})
	if err == nil {
		defer w.Stop()
		event := <-w.ResultChan()
		err = apierrors.FromObject(event.Object)
	}
	kit.Check(t, apierrors.IsResourceExpired(err) || apierrors.IsGone(err),
		"watch from version %s: %v, want expired", old.ResourceVersion, err)
}

// TestFaultProxy reads the API server from the node through a FaultProxy.
func TestFaultProxy(t *testing.T) {
	lab, c := start(t, Options{})
	f, err := c.NewFaultProxy(t.Context())
	kit.Must(t, err)
	defer f.Close()
	path, err := c.Kubeconfig(Login{Server: f.URL})
	kit.Must(t, err)
	client := clientOn(t, lab.Node, path)
	kit.Must(t, list(t.Context(), client))
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
	kit.Must(t, err)
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
