// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"kubeproxy/test/cluster"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// testLogins connects to the API server in every supported way.
func testLogins(t *testing.T, w *fixture) {
	web := newService("web")
	w.set(t, append(endpoints("web", w.webs(2)...), web)...)
	calls := w.calls(t, web)
	for _, tc := range []struct {
		name string
		args func(*testing.T) []string
	}{
		{"kubeconfig", func(*testing.T) []string { return []string{"--kubeconfig=" + w.login} }},
		{"kubeconfig of somebody with the role that API servers make", func(t *testing.T) []string {
			return []string{"--kubeconfig=" + w.kubeconfig(t, cluster.Login{User: "system:kube-proxy"})}
		}},
		{"kubeconfig and another address", func(t *testing.T) []string {
			return []string{
				"--kubeconfig=" + w.kubeconfig(t, cluster.Login{Token: w.token, Server: "https://192.0.2.100:1"}),
				"--master=" + w.api.Server,
			}
		}},
		{"address alone", func(t *testing.T) []string { return []string{"--master=" + w.serveWithoutLogin(t)} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := w.run(t, append(tc.args(t), "--cluster-cidr="+netlab.ClusterCIDR)...)
			w.awaitProgrammed(t).Check(t, calls)
			p.Stop(t)
			if p.Log.Has("forbidden") {
				t.Error("the account lacks a right")
			}
		})
	}
	t.Run("in a pod", func(t *testing.T) {
		w.cleanUp(t)
		p := program.Start(t, w.Node, w.inPod(t, "--cluster-cidr="+netlab.ClusterCIDR))
		w.awaitProgrammed(t).Check(t, calls)
		p.Stop(t)
	})
	t.Run("no rights", func(t *testing.T) {
		before := program.Generation(t, w.Node)
		p := w.run(t, "--kubeconfig="+w.kubeconfig(t, cluster.Login{User: "somebody"}), "--cluster-cidr="+netlab.ClusterCIDR)
		p.AwaitLog(t, "The API server cannot be read", "forbidden")
		awaitHealth(t, p, "nothing was read", http.StatusServiceUnavailable, http.StatusServiceUnavailable)
		if p.Ended() || program.Generation(t, w.Node) != before {
			t.Errorf("ended: %t, rules changed %d times; want neither", p.Ended(), program.Generation(t, w.Node)-before)
		}
		p.Stop(t)
	})
}

func (w *fixture) kubeconfig(t *testing.T, l cluster.Login) string {
	t.Helper()
	path, err := w.api.Kubeconfig(l)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// serveWithoutLogin serves the API without authentication, and returns its address.
func (w *fixture) serveWithoutLogin(t *testing.T) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", w.login)
	if err != nil {
		t.Fatal(err)
	}
	control := w.Host("control")
	config.Dial = control.Dial
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(w.api.Server)
	if err != nil {
		t.Fatal(err)
	}
	l, err := control.Listen(t.Context(), "tcp", net.JoinHostPort(control.IPv4.String(), "8001"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: transport, FlushInterval: -1,
	}}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { server.Close() })
	return "http://" + l.Addr().String()
}

// podScript mounts the files of a ServiceAccount at their path in pods, in a mount
// namespace of its own, and executes the program.
const podScript = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /var/run/secrets/kubernetes.io
cp -r "$1" /var/run/secrets/kubernetes.io/serviceaccount
shift
exec "$@"`

// inPod prepares the proxy as in a pod: with the files of its ServiceAccount and the
// address of the API server in the environment. See
// https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
func (w *fixture) inPod(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	config, err := clientcmd.LoadFromFile(w.login)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string][]byte{
		"token": []byte(w.token), "namespace": []byte(system),
		"ca.crt": config.Clusters[config.Contexts[config.CurrentContext].Cluster].CertificateAuthorityData,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	proxy := kubeProxy.Command(args...)
	cmd := exec.Command("/bin/sh", append([]string{"-c", podScript, "pod", dir}, proxy.Args...)...)
	cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST="+w.Host("control").IPv4.String(), "KUBERNETES_SERVICE_PORT=6443")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	return cmd
}
