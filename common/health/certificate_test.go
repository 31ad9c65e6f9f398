// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// keyPair returns a certificate with a serial number and its key, in PEM.
func keyPair(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err = x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err = x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// serial asks a server, and returns the serial number of its certificate.
func serial(t *testing.T, addr string) int64 {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := client.Get("https://" + addr + "/")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	return answer.TLS.PeerCertificates[0].SerialNumber.Int64()
}

// TestCertificate replaces the files of a server that runs. Half of a pair, and a file
// that has gone, change nothing and are reported.
func TestCertificate(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	oldCert, oldKey := keyPair(t, 1)
	newCert, newKey := keyPair(t, 2)
	write(t, certFile, oldCert)
	write(t, keyFile, oldKey)
	reports := make(chan error, 10)
	c, err := LoadCertificate(certFile, keyFile, func(err error) { reports <- err })
	if err != nil {
		t.Fatal(err)
	}
	bound := make(chan string, 1)
	s := Server{Name: "test", Addr: "127.0.0.1:0", Handler: hello("x"), TLS: c.Config(), Listening: func(a net.Addr) { bound <- a.String() }}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	addr := <-bound
	for _, step := range []struct {
		name   string
		change func()
		want   int64
		report string
	}{
		{"as loaded", func() {}, 1, ""},
		{"half of a pair", func() { write(t, certFile, newCert) }, 1, "of one pair"},
		{"both", func() { write(t, keyFile, newKey) }, 2, ""},
		{"no file", func() { os.Remove(keyFile) }, 2, keyFile},
	} {
		step.change()
		if got := serial(t, addr); got != step.want {
			t.Errorf("%s: certificate %d, want %d", step.name, got, step.want)
		}
		if err := <-reports; (err == nil) != (step.report == "") || err != nil && !strings.Contains(err.Error(), step.report) {
			t.Errorf("%s: reported %v, want %q", step.name, err, step.report)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := LoadCertificate(certFile, keyFile, nil); err == nil || !strings.Contains(err.Error(), keyFile) {
		t.Errorf("loaded without a key: %v", err)
	}
}
