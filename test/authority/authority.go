// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package authority signs the certificates of clusters in tests: of servers and of their
// clients.
package authority

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

// Authority signs the certificates of one cluster.
type Authority struct {
	// Certificate is that of the authority itself, PEM the same as a file has it.
	Certificate *x509.Certificate
	PEM         []byte

	key *ecdsa.PrivateKey
}

// Subject describes the holder of a certificate.
type Subject struct {
	Name   string
	Groups []string
	Hosts  []string     // names of a server
	Addrs  []netip.Addr // addresses of a server
	Until  time.Time    // zero: some days from now
}

// Backdated is how long before its creation a certificate is already valid, so that an
// expired one can be created. It is valid as long after, unless a Subject says until when.
const Backdated = 48 * time.Hour

// New makes an authority that is valid until some time, or for some days.
func New(until time.Time) (*Authority, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	a := &Authority{key: key}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, NotAfter: until,
	}
	a.Certificate, a.PEM, err = sign(template, template, key, key)
	return a, err
}

// KeyPEM returns the authority's own key, for controllers that sign.
func (a *Authority) KeyPEM() ([]byte, error) { return KeyPEM(a.key) }

// Issue returns a certificate for s with the public part of key.
func (a *Authority) Issue(s Subject, key *ecdsa.PrivateKey) ([]byte, error) {
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: s.Name, Organization: s.Groups},
		KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: s.Hosts, NotAfter: s.Until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, addr := range s.Addrs {
		template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
	}
	_, text, err := sign(template, a.Certificate, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", s.Name, err)
	}
	return text, nil
}

func sign(template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, []byte, error) {
	template.SerialNumber = new(big.Int).SetBytes([]byte(rand.Text()))
	template.NotBefore = time.Now().Add(-Backdated)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(Backdated)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// NewKey makes a key for a certificate.
func NewKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// KeyPEM encodes a key as the programs of Kubernetes read it.
func KeyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
