// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"kubeproxy/test/authority"
	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// A proxy that the API server refuses, or that cannot reach it, logs the remedy once,
// tries again and again, and shows that in its health. Nothing is programmed.
func TestLoginFails(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	other := newOther(t, w)
	for name, tc := range map[string]struct {
		config string
		want   []string // in one line of the log
	}{
		"wrong token":         {w.kubeconfig(t, cluster.Login{Token: "wrong"}), []string{"Unauthorized", "remedy=", "renew"}},
		"expired certificate": {w.kubeconfig(t, cluster.Login{User: "system:kube-proxy", Until: time.Now().Add(-time.Hour)}), []string{"client certificate has expired", "kubeconfig=", "renew"}},
		"no rights":           {w.kubeconfig(t, cluster.Login{User: "somebody"}), []string{"forbidden", "remedy=", "ClusterRole"}},
		"nobody there":        {w.kubeconfig(t, cluster.Login{Server: "https://192.0.2.100:1"}), []string{"connection refused", "remedy=", "cluster.server"}},
		"no such host":        {w.kubeconfig(t, cluster.Login{Server: "https://api.invalid:6443"}), []string{"api.invalid", "remedy=", "cluster.server"}},
		"another authority":   {other, []string{"unknown authority", "remedy=", "certificate-authority"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := kubeProxy.Start(t, w.lab.Node, "--kubeconfig="+tc.config)
			p.AwaitLog(t, tc.want...)
			kit.Until(t, "the failure among the sources", func() bool {
				health, err := program.Fetch(t.Context(), w.lab.Node, program.HealthAddr, "/healthz")
				if err != nil || health.Status != http.StatusServiceUnavailable {
					return false
				}
				page, err := program.Fetch(t.Context(), w.lab.Node, program.MetricsAddr, "/services")
				return err == nil && strings.Contains(string(page.Body), "at the API server: ")
			})
			if p.Ended() || p.Log.Has(`"Programmed"`) {
				t.Error("it ended, or programmed what it cannot know")
			}
			if n := p.Log.Count("The API server cannot be read"); n > 3 {
				t.Errorf("%d lines about one thing", n)
			}
			p.Stop(t)
		})
	}
}

// newOther returns a kubeconfig that trusts another authority.
func newOther(t *testing.T, w fixture) string {
	t.Helper()
	path := w.kubeconfig(t, cluster.Login{})
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	other, err := authority.New(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		c.CertificateAuthorityData = other.PEM
	}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// One that is let in later, without a restart, begins to work.
func TestLoginRecovers(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	w.set(t, newNode())
	p := w.start(t, cluster.Login{User: "old"})
	p.AwaitLog(t, "The API server cannot be read", "forbidden")
	if err := w.Apply(t.Context(), []byte(oldClusterRole)); err != nil {
		t.Fatal(err)
	}
	awaitSlowLog(t, p, `"Programmed"`, "IPv4")
	awaitSlowLog(t, p, "The API server can be read again")
}
