// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"crypto/tls"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/kit"
)

// Validities of a certificate, from now on.
const (
	past   = -time.Hour
	future = time.Hour
)

// certify gives the API server a certificate and waits until the server uses it.
func (s *site) certify(t *testing.T, valid time.Duration) {
	t.Helper()
	until := time.Now().Add(valid)
	if err := s.SetServerCertificate(until); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the server's new certificate", func() bool {
		conn, err := s.Host("control").Dial(t.Context(), "tcp", strings.TrimPrefix(s.Server, "https://"))
		if err != nil {
			return false
		}
		defer conn.Close()
		c := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		if c.HandshakeContext(t.Context()) != nil {
			return false
		}
		return c.ConnectionState().PeerCertificates[0].NotAfter.Sub(until).Abs() < 2*time.Second
	})
}
