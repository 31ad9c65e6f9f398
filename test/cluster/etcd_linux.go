// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	etcdPort     = "2379"
	etcdPeerPort = "2380"
	etcdURL      = "http://127.0.0.1:" + etcdPort
)

// etcdFlags configure a single member that waits for no others. It loses nothing when
// only the process ends: its writes are in the kernel's page cache.
func (c *Cluster) etcdFlags() []string {
	const peer = "http://127.0.0.1:" + etcdPeerPort
	return []string{
		"--name=test", "--data-dir=" + c.path("etcd"), "--log-level=warn",
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer,
		"--heartbeat-interval=20", "--election-timeout=200", "--unsafe-no-fsync",
		"--quota-backend-bytes=4294967296",
	}
}

func (c *Cluster) etcdReady(ctx context.Context) error {
	var health struct{ Health string }
	if err := c.etcd(ctx, http.MethodGet, "/health", nil, &health); err != nil {
		return err
	}
	if health.Health != "true" {
		return fmt.Errorf("etcd says health %q", health.Health)
	}
	return nil
}

// Compact makes etcd drop all versions of objects but the latest. A watch that continues
// from an older version then fails with "expired", if the API server has started since; a
// running one has its own watch cache. See
// https://etcd.io/docs/latest/op-guide/maintenance/
func (c *Cluster) Compact(ctx context.Context) error {
	var now struct{ Header struct{ Revision string } }
	anything := map[string]any{"key": []byte("/"), "limit": 1}
	if err := c.etcd(ctx, http.MethodPost, "/v3/kv/range", anything, &now); err != nil {
		return fmt.Errorf("read etcd's revision: %w", err)
	}
	upTo := map[string]any{"revision": now.Header.Revision, "physical": true}
	if err := c.etcd(ctx, http.MethodPost, "/v3/kv/compaction", upTo, &now); err != nil {
		return fmt.Errorf("compact etcd to revision %s: %w", now.Header.Revision, err)
	}
	return nil
}

// Store writes an object into etcd under a key such as
// /registry/services/specs/NAMESPACE/NAME, without validation and defaulting by the API
// server. Clients receive it unchanged, like an object that another version of the API
// server admitted. The object needs its kind and apiVersion.
func (c *Cluster) Store(ctx context.Context, key string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("store %s: %w", key, err)
	}
	put := map[string]any{"key": []byte(key), "value": text}
	if err := c.etcd(ctx, http.MethodPost, "/v3/kv/put", put, &struct{}{}); err != nil {
		return fmt.Errorf("store %s: %w", key, err)
	}
	return nil
}

// etcd sends a request to the JSON gateway of etcd.
func (c *Cluster) etcd(ctx context.Context, method, path string, question, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, etcdURL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: c.dial, DisableKeepAlives: true}}
	a, err := client.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, a.Status, text)
	}
	return json.Unmarshal(text, answer)
}

// dial connects from the cluster's own host, as the caller is in another network.
func (c *Cluster) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return c.host.Dial(ctx, network, addr)
}
