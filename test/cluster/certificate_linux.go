// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/netip"
	"time"
)

// authority signs the certificates of one cluster, the server's and those of its clients.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

// subject describes the holder of a certificate.
type subject struct {
	name   string
	groups []string
	hosts  []string     // names of a server
	addrs  []netip.Addr // addresses of a server
	until  time.Time
}

// backdated is how long before its creation a certificate is already valid, so that an
// expired one can be created.
const backdated = 48 * time.Hour

func newAuthority() (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	a := &authority{key: key}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	a.cert, a.pem, err = sign(template, template, key, key)
	return a, err
}

// issue returns a certificate for s with the public part of key.
func (a *authority) issue(s subject, key *ecdsa.PrivateKey) ([]byte, error) {
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: s.name, Organization: s.groups},
		KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: s.hosts, NotAfter: s.until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, addr := range s.addrs {
		template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
	}
	_, text, err := sign(template, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", s.name, err)
	}
	return text, nil
}

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, []byte, error) {
	template.SerialNumber = new(big.Int).SetBytes([]byte(rand.Text()))
	template.NotBefore = time.Now().Add(-backdated)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(backdated)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

func newKey() (*ecdsa.PrivateKey, error) {
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
