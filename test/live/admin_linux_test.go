// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestPagesForTheNode checks that a metrics server on every address of the node gives
// Prometheus elsewhere the metrics alone. Services and the configuration are for the node.
func TestPagesForTheNode(t *testing.T) {
	m := defaultMode()
	m.flags = append(m.flags[:len(m.flags):len(m.flags)], "--metrics-bind-address=0.0.0.0:10249")
	c := newCluster(t, m)
	p := c.start(t)
	node := c.Node.IPv4.String()
	for path, elsewhere := range map[string]int{
		"/metrics": http.StatusOK, "/proxyMode": http.StatusOK,
		"/services": http.StatusForbidden, "/configz": http.StatusForbidden, "/statusz": http.StatusForbidden, "/flagz": http.StatusForbidden,
	} {
		if status := p.Status(t, program.MetricsAddr, path); status != http.StatusOK {
			t.Errorf("%s on the node = %d", path, status)
		}
		page, err := program.Fetch(t.Context(), c.clientHosts()[0], net.JoinHostPort(node, "10249"), path)
		if err != nil || page.Status != elsewhere {
			t.Errorf("%s from elsewhere = %d, %v; want %d", path, page.Status, err, elsewhere)
		}
	}
}

// TestHTTPS checks that the servers speak HTTPS where flags name a certificate, that
// status finds out, and that the certificate may be renewed while the proxy runs.
func TestHTTPS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writeKeyPair(t, cert, key)
	m := defaultMode()
	m.flags = append(m.flags[:len(m.flags):len(m.flags)], "--tls-cert-file="+cert, "--tls-private-key-file="+key)
	c := newCluster(t, m)
	p := c.start(t)
	for _, addr := range []string{program.HealthAddr, program.MetricsAddr} {
		if page := p.Fetch(t, addr, "/healthz"); page.Status != http.StatusBadRequest || !strings.Contains(string(page.Body), "HTTPS") {
			t.Errorf("%s answers plain HTTP with %d: %s", addr, page.Status, page.Body)
		}
	}
	if out, err := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status")); err != nil {
		t.Errorf("status: %v\n%s", err, out)
	}
	first := served(t, c.Node, program.MetricsAddr)
	writeKeyPair(t, cert, key)
	for _, addr := range []string{program.HealthAddr, program.MetricsAddr} {
		kit.Until(t, "the renewed certificate at "+addr, func() bool { return served(t, c.Node, addr).Cmp(first) != 0 })
	}
	kit.WriteFile(t, key, "torn")
	renewed := served(t, c.Node, program.MetricsAddr)
	kit.Until(t, "status with a word on the torn key", func() bool {
		out, err := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status"))
		return err == nil && strings.Contains(strings.Join(strings.Fields(out), " "), "failed to find any PEM data in key input")
	})
	if now := served(t, c.Node, program.MetricsAddr); now.Cmp(renewed) != 0 {
		t.Error("a key that cannot be read changed the certificate")
	}
	out, err := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "--tls-cert-file="+cert, "--manifests="+c.dir, "--hostname-override="+netlab.NodeName))
	if err == nil || !strings.Contains(out, "want both, or neither") {
		t.Errorf("a certificate without a key: %v\n%s", err, out)
	}
}

// served returns the number of the certificate of a server on h.
func served(t *testing.T, h *netlab.Host, addr string) *big.Int {
	t.Helper()
	raw, err := h.Dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true}) // it is signed by itself
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c.ConnectionState().PeerCertificates[0].SerialNumber
}

// writeKeyPair writes a certificate with a new number, and its key.
func writeKeyPair(t *testing.T, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour)}
	public, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	if err != nil {
		t.Fatal(err)
	}
}
