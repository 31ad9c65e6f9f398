// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubeproxy/test/authority"
)

// Login is the identity of a client, and its server. The zero Login is an
// administrator's.
type Login struct {
	// Token, if set, is the client's bearer token.
	Token string
	// User and Groups, if set, are in the client's certificate, which is valid until
	// Until, by default for some days.
	User   string
	Groups []string
	Until  time.Time
	// Server is the URL of the server, by default Cluster.Server.
	Server string
}

// Kubeconfig writes a kubeconfig with embedded credentials, and returns its path.
func (c *Cluster) Kubeconfig(l Login) (string, error) {
	who := clientcmdapi.NewAuthInfo()
	switch {
	case l.User != "":
		if err := c.certifyUser(who, l); err != nil {
			return "", err
		}
	default:
		who.Token = cmp.Or(l.Token, c.token)
	}
	where := clientcmdapi.NewCluster()
	where.Server, where.CertificateAuthorityData = cmp.Or(l.Server, c.Server), c.ca.PEM
	config := clientcmdapi.NewConfig()
	config.Clusters["test"], config.AuthInfos["user"] = where, who
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "user"}
	config.CurrentContext = "test"
	path := c.path("kubeconfig-" + rand.Text())
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	return path, nil
}

func (c *Cluster) certifyUser(who *clientcmdapi.AuthInfo, l Login) error {
	key, err := authority.NewKey()
	if err != nil {
		return fmt.Errorf("make a key for %s: %w", l.User, err)
	}
	if who.ClientKeyData, err = authority.KeyPEM(key); err != nil {
		return err
	}
	who.ClientCertificateData, err = c.ca.Issue(authority.Subject{Name: l.User, Groups: l.Groups, Until: l.Until}, key)
	return err
}
