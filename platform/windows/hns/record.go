// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"kubeproxy/common/files"
)

// Store keeps a small document across restarts.
type Store interface {
	// Load returns what was saved last, nil if nothing was.
	Load() ([]byte, error)
	// Save replaces it, all or nothing. A nil document removes it.
	Save(document []byte) error
}

// FileStore is a Store in a file of that path. Its directory is made when needed.
type FileStore string

// maxRecordSize is more than a node's record ever has.
const maxRecordSize = 64 << 20

// Load implements Store.
func (f FileStore) Load() ([]byte, error) {
	b, _, err := files.Read(string(f), maxRecordSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// Save implements Store.
func (f FileStore) Save(document []byte) error {
	if document == nil {
		if err := os.Remove(string(f)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	dir := filepath.Dir(string(f))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// The name is fixed, so that crashes leave one such file at most.
	next := string(f) + ".next"
	if err := writeFile(next, document); err != nil {
		return err
	}
	return os.Rename(next, string(f))
}

func writeFile(path string, b []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// record is what we have made and who it is for. HNS gives load balancers no
// names, so this is how a later process knows ours, besides what they look
// like.
type record struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	// LoadBalancers and Endpoints say by ID what they are for.
	LoadBalancers map[string]string `json:"loadBalancers"`
	Endpoints     map[string]string `json:"endpoints"`
	// Pending are keys of load balancers that are about to be made, in case
	// we do not live to note their IDs.
	Pending map[string]string `json:"intended,omitempty"`
}

const recordVersion = 1

func newRecord(node string) record {
	return record{recordVersion, node, map[string]string{}, map[string]string{}, map[string]string{}}
}

// readRecord never fails: what cannot be used is said in note, and then what
// we made is known by what it looks like.
func readRecord(s Store, node string) (r record, note string) {
	r = newRecord(node)
	b, err := s.Load()
	if err != nil {
		return r, fmt.Sprintf("The state file cannot be read; what an earlier process made is known by its looks: %v", err)
	}
	if b == nil {
		return r, ""
	}
	var read record
	switch err := json.Unmarshal(b, &read); {
	case err != nil:
		return r, fmt.Sprintf("The state file is damaged and will be replaced; what an earlier process made is known by its looks: %v", err)
	case read.Version != recordVersion:
		return r, fmt.Sprintf("The state file has version %d, want %d; it will be replaced, and what an earlier process made is known by its looks", read.Version, recordVersion)
	case read.Node != node:
		return r, fmt.Sprintf("The state file is of node %q, not of %q; it will be replaced, and nothing in it counts as ours", read.Node, node)
	}
	for _, m := range []struct{ to, from map[string]string }{
		{r.LoadBalancers, read.LoadBalancers}, {r.Endpoints, read.Endpoints}, {r.Pending, read.Pending},
	} {
		for k, v := range m.from {
			m.to[k] = v
		}
	}
	return r, ""
}

func (r *record) empty() bool { return len(r.LoadBalancers)+len(r.Endpoints)+len(r.Pending) == 0 }
