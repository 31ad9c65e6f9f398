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
	if err != nil {
		t.Fatal(err)
	}
	config.Dial = h.Dial
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
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
			if err != nil {
				t.Fatal(err)
			}
			if err := list(t.Context(), clientOn(t, lab.Node, path)); !tc.ok(err) {
				t.Errorf("list of Services: %v", err)
			}
		})
	}
	t.Run("server's certificate expired", func(t *testing.T) { testExpiredServer(t, lab, c) })
}

func testExpiredServer(t *testing.T, lab *netlab.Lab, c *Cluster) {
	path, err := c.Kubeconfig(Login{})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		until time.Duration
		ok    func(error) bool
	}{
		{-time.Hour, func(err error) bool { return err != nil && strings.Contains(err.Error(), "expired") }},
		{time.Hour, func(err error) bool { return err == nil }},
	} {
		if err := c.SetServerCertificate(time.Now().Add(step.until)); err != nil {
			t.Fatal(err)
		}
		kit.Until(t, "the certificate's change", func() bool {
			return step.ok(list(t.Context(), clientOn(t, lab.Node, path)))
		})
	}
}

// TestFaults shares one control plane, which each case leaves in order.
func TestFaults(t *testing.T) {
	_, c := start(t, Options{})
	kept := newService("kept", corev1.ServiceSpec{})
	if err := c.Set(t.Context(), kept); err != nil {
		t.Fatal(err)
	}
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
	if err := c.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.APIServer.Start(t.Context()); err == nil {
		t.Error("second Start: no error, want one that says it runs")
	}
}

func testPaused(t *testing.T, c *Cluster) {
	if err := c.APIServer.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := list(ctx, c.Client); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("paused: %v, want silence", err)
	}
	if err := c.APIServer.Resume(); err != nil {
		t.Fatal(err)
	}
}

// testCompacted continues a watch from a version that was compacted.
func testCompacted(t *testing.T, c *Cluster) {
	old, err := c.Client.CoreV1().Services(space).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		if err := c.Set(t.Context(), newService(name, corev1.ServiceSpec{})); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := map[string]any{"key": []byte("/"), "limit": 1, "revision": old.ResourceVersion}
	if err := c.etcd(t.Context(), http.MethodPost, "/v3/kv/range", at, &struct{}{}); err == nil || !strings.Contains(err.Error(), "compacted") {
		t.Errorf("read of revision %s: %v, want one that says compacted", old.ResourceVersion, err)
	}
	if err := errors.Join(c.Etcd.Restart(t.Context()), c.APIServer.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	w, err := c.Client.CoreV1().Services(space).Watch(t.Context(), metav1.ListOptions{ResourceVersion: old.ResourceVersion})
	if err == nil {
		defer w.Stop()
		event := <-w.ResultChan()
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watch from version %s: %v, want expired", old.ResourceVersion, err)
	}
}
