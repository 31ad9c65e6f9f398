// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes"

	"kubeproxy/test/authority"
	"kubeproxy/test/netlab"
)

// Options describe a control plane.
type Options struct {
	// Host is where it runs: best a client of the lab that does nothing else. The nodes
	// reach it there at Cluster.Server.
	Host *netlab.Host
	// Authorization selects the authorizer.
	Authorization Authorization
	// Flags are more flags of the API server. The last of two wins.
	Flags []string
	// Dir is a folder for its files. It may be removed after the cluster is closed.
	Dir string
}

// Authorization is an authorization mode of the API server.
type Authorization string

// The authorization modes. With RBAC, the API server creates the default roles, including
// system:node-proxier. See https://kubernetes.io/docs/reference/access-authn-authz/rbac/
const (
	AlwaysAllow Authorization = ""
	RBAC        Authorization = "RBAC"
)

// The ranges of ClusterIPs.
const (
	ServiceCIDRv4 = "10.96.0.0/12"
	ServiceCIDRv6 = "fd00:10:96::/112"
)

// Cluster is a control plane. Its methods may be called from several goroutines.
type Cluster struct {
	// Client has all privileges, without a rate limit.
	Client          *kubernetes.Clientset
	Etcd, APIServer *Process
	Server          string // the API server's URL

	host  *netlab.Host
	dir   string
	ca    *authority.Authority
	token string // of an administrator
}

// New starts a control plane with the programs of Build and returns when it is ready. The
// caller closes it.
func New(ctx context.Context, programs Programs, o Options) (*Cluster, error) {
	c := &Cluster{
		Server: "https://" + o.Host.IPv4.String() + ":" + apiPort,
		host:   o.Host, dir: o.Dir, token: rand.Text(),
	}
	var err error
	if c.ca, err = authority.New(time.Time{}); err != nil {
		return nil, fmt.Errorf("make an authority for certificates: %w", err)
	}
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	if c.Client, err = c.client(); err != nil {
		return nil, err
	}
	c.Etcd = c.process("etcd", programs.Etcd, c.etcdFlags(), c.etcdReady)
	c.APIServer = c.process("kube-apiserver", programs.APIServer, c.apiFlags(o), c.apiReady)
	if err := errors.Join(c.Etcd.launch(), c.APIServer.Start(ctx)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) process(name, program string, args []string, ready func(context.Context) error) *Process {
	return &Process{name: name, host: c.host, program: program, args: args, log: c.path(name + ".log"), ready: ready}
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// Close ends the control plane.
func (c *Cluster) Close() error {
	c.APIServer.Kill()
	c.Etcd.Kill()
	return nil
}

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	TempDir() string
}

// Start runs a control plane for one test, and builds its programs if they are missing.
// If the test fails, its log contains the end of their logs.
func Start(t TB, o Options) *Cluster {
	t.Helper()
	programs, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatalf("control plane: %v", err)
	}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	c, err := New(t.Context(), programs, o)
	if err != nil {
		t.Fatalf("control plane: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Logf("close the control plane: %v", err)
		}
		if t.Failed() {
			t.Logf("log of etcd:\n%s\nlog of kube-apiserver:\n%s", c.Etcd.Tail(), c.APIServer.Tail())
		}
	})
	return c
}
