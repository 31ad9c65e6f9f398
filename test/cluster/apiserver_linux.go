// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubeproxy/test/authority"
)

const apiPort = "6443"

// The API server's files in the cluster's folder.
const (
	authorityFile = "authority.crt"
	certFile      = "server.crt"
	keyFile       = "server.key"
	accountKey    = "account.key"
	tokenFile     = "tokens.csv"
)

func (c *Cluster) apiFlags(o Options) []string {
	mode := "AlwaysAllow"
	if o.Authorization != AlwaysAllow {
		mode = string(o.Authorization)
	}
	flags := []string{
		"--etcd-servers=" + etcdURL, "--service-cluster-ip-range=" + ServiceCIDRv4 + "," + ServiceCIDRv6,
		"--bind-address=::", "--secure-port=" + apiPort, "--advertise-address=" + c.host.IPv4.String(),
		"--tls-cert-file=" + c.path(certFile), "--tls-private-key-file=" + c.path(keyFile),
		"--client-ca-file=" + c.path(authorityFile), "--token-auth-file=" + c.path(tokenFile),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path(accountKey), "--service-account-signing-key-file=" + c.path(accountKey),
		"--authorization-mode=" + mode,
		// No controller runs that would create what these plugins wait for.
		"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
		// Tests send many requests at once, and measure the proxy, not the queue.
		"--enable-priority-and-fairness=false", "--max-requests-inflight=2000", "--max-mutating-requests-inflight=2000",
		"--profiling=false",
	}
	return append(flags, o.Flags...)
}

// writeFiles creates the keys, certificates and tokens of a new cluster.
func (c *Cluster) writeFiles() error {
	files := map[string][]byte{
		authorityFile: c.ca.PEM,
		tokenFile:     []byte(c.token + ",admin,admin,system:masters\n"),
	}
	for _, name := range []string{keyFile, accountKey} {
		key, err := authority.NewKey()
		if err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		if files[name], err = authority.KeyPEM(key); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
	}
	var errs []error
	for name, text := range files {
		errs = append(errs, os.WriteFile(c.path(name), text, 0o600))
	}
	return errors.Join(errors.Join(errs...), c.SetServerCertificate(time.Now().Add(authority.Backdated)))
}

// SetServerCertificate gives the API server a certificate that is valid until some time,
// which may be past. A running server uses it within moments for new connections.
func (c *Cluster) SetServerCertificate(until time.Time) error {
	text, err := os.ReadFile(c.path(keyFile))
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return fmt.Errorf("%s: no key in PEM", c.path(keyFile))
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return fmt.Errorf("%s: %w", c.path(keyFile), err)
	}
	server := authority.Subject{
		Name: "kube-apiserver", Until: until,
		Hosts: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		Addrs: []netip.Addr{
			c.host.IPv4, c.host.IPv6, netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback(),
			netip.MustParsePrefix(ServiceCIDRv4).Addr().Next(), netip.MustParsePrefix(ServiceCIDRv6).Addr().Next(),
		},
	}
	cert, err := c.ca.Issue(server, key)
	if err != nil {
		return err
	}
	// In one step: a server that reads half a certificate logs an error.
	next := c.path(certFile + ".next")
	if err := os.WriteFile(next, cert, 0o600); err != nil {
		return err
	}
	return os.Rename(next, c.path(certFile))
}

// apiReady waits for the objects that the server creates shortly after it is ready: tests
// write to those namespaces, and count Services.
func (c *Cluster) apiReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, path := range []string{"/readyz", "/api/v1/namespaces/kube-system", "/api/v1/namespaces/default/services/kubernetes"} {
		if _, err := c.Client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func (c *Cluster) client() (*kubernetes.Clientset, error) {
	config := &rest.Config{
		Host: c.Server, BearerToken: c.token, TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.PEM},
		Dial: c.dial, QPS: -1, WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{
			ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return client, nil
}
