// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubeproxy/test/authority"
)

// lifetime is how long a cluster's certificates are valid.
const lifetime = 365 * 24 * time.Hour

// signer makes the files of certificates and keys that the cluster's programs read.
type signer struct {
	cluster *Cluster
	*authority.Authority
}

func (c *Cluster) newSigner() (*signer, error) {
	a, err := authority.New(time.Now().Add(lifetime))
	if err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	key, err := a.KeyPEM()
	if err == nil {
		err = errors.Join(os.WriteFile(c.pki("ca.key"), key, 0o600), os.WriteFile(c.pki("ca.crt"), a.PEM, 0o644))
	}
	return &signer{c, a}, err
}

func (c *Cluster) pki(name string) string { return c.path("pki", name) }

// newKey writes a new key, and returns it. One alone signs for service accounts.
func (c *Cluster) newKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := authority.NewKey()
	if err != nil {
		return nil, err
	}
	text, err := authority.KeyPEM(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(c.pki(name+".key"), text, 0o600)
}

// issue writes a certificate and its key.
func (s *signer) issue(name string, who authority.Subject) error {
	key, err := s.cluster.newKey(name)
	if err != nil {
		return err
	}
	who.Until = time.Now().Add(lifetime)
	cert, err := s.Issue(who, key)
	if err != nil {
		return err
	}
	return os.WriteFile(s.cluster.pki(name+".crt"), cert, 0o644)
}

// login writes a kubeconfig with the certificate called name.
func (c *Cluster) login(file, name, server string) error {
	who, where := clientcmdapi.NewAuthInfo(), clientcmdapi.NewCluster()
	who.ClientCertificate, who.ClientKey = c.pki(name+".crt"), c.pki(name+".key")
	where.Server, where.CertificateAuthority = server, c.pki("ca.crt")
	config := clientcmdapi.NewConfig()
	config.Clusters["kubeproxy"], config.AuthInfos[name] = where, who
	config.Contexts["kubeproxy"] = &clientcmdapi.Context{Cluster: "kubeproxy", AuthInfo: name}
	config.CurrentContext = "kubeproxy"
	return clientcmd.WriteToFile(*config, file)
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}
