// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"sync"

	"kubeproxy/common/files"
)

// Certificate is a certificate and its key, in files that may be replaced while the
// servers run.
type Certificate struct {
	certFile, keyFile string
	report            func(error)

	mu        sync.Mutex // held from a read to its report, so that reports keep their order
	cert, key []byte
	latest    *tls.Certificate
}

// maxCertificate bounds each file, in bytes.
const maxCertificate = 1 << 20

// LoadCertificate reads a certificate and its key in PEM. report, if not nil, is called
// with what a later read resulted in, nil for success.
func LoadCertificate(certFile, keyFile string, report func(error)) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, report: report}
	if err := c.read(); err != nil {
		return nil, err
	}
	return c, nil
}

// Config returns the configuration of a server with the certificate.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.current}
}

// current returns the certificate in the files. While these cannot be used, it returns
// the previous one, for example while only one of the two files has been replaced.
func (c *Certificate) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.read()
	if c.report != nil {
		c.report(err)
	}
	return c.latest, nil
}

func (c *Certificate) read() error {
	cert, _, err := files.Read(c.certFile, maxCertificate)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", c.certFile, err)
	}
	key, _, err := files.Read(c.keyFile, maxCertificate)
	if err != nil {
		return fmt.Errorf("key %s: %w", c.keyFile, err)
	}
	if c.latest != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w; want both in PEM, and of one pair", c.certFile, c.keyFile, err)
	}
	c.latest, c.cert, c.key = &pair, cert, key
	return nil
}
