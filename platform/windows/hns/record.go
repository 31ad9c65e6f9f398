// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"kubeproxy/common/files"
)

// Store keeps a small document across restarts.
type Store interface {
	// Load returns the document that was saved last, or nil.
	Load() ([]byte, error)
	// Save replaces the document atomically. A nil document deletes it.
	Save(document []byte) error
}

// FileStore is a Store in the file with that path. Save creates its directory.
type FileStore string

// StateFile returns the path of a node's record, in the folder for data of system programs.
func StateFile() string {
	data := os.Getenv("ProgramData")
	if data == "" {
		data = `C:\ProgramData`
	}
	return filepath.Join(data, "kube-proxy", "hns-state.json")
}

// SettingsFile returns the path of the file with the settings of the last run, beside that of the state.
func SettingsFile() FileStore {
	return FileStore(filepath.Join(filepath.Dir(StateFile()), "settings.json"))
}

// maxRecordSize exceeds the size of any node's record.
const maxRecordSize = 64 << 20

// Load implements Store. A file that others may have written would say which objects the system deletes, so it is not
// used.
func (f FileStore) Load() ([]byte, error) {
	for _, path := range []string{filepath.Dir(string(f)), string(f)} {
		switch writers, err := files.Writers(path); {
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil
		case err != nil:
			return nil, err
		case len(writers) > 0:
			return nil, fmt.Errorf("others may write to %s: %s", path, strings.Join(writers, ", "))
		}
	}
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
	if err := files.Protect(filepath.Dir(string(f))); err != nil {
		return err
	}
	// The name is fixed, so that crashes leave at most one such file.
	next := string(f) + ".next"
	if err := writeFile(next, document); err != nil {
		return err
	}
	return os.Rename(next, string(f))
}

// writeFile makes a file anew, in place of what a crash has left.
func writeFile(path string, b []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) // follows no link
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// record lists the objects that this proxy created, and their purpose: load balancers have no
// names. A later process knows ours by it, and otherwise by their properties.
type record struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	// LoadBalancers and Endpoints map IDs to purposes, and Keys those of load balancers to their keys.
	LoadBalancers map[string]string `json:"loadBalancers"`
	Keys          map[string]string `json:"keys"`
	Endpoints     map[string]string `json:"endpoints"`
	// Pending holds the keys of load balancers that are being created, for the case that
	// this process ends before it records their IDs.
	Pending map[string]string `json:"intended,omitempty"`
	// Forms, by key, and Routes are of objects that HNS gives back in another form.
	Forms  map[string]answer[form]    `json:"forms,omitempty"`
	Routes map[netip.Addr]routeAnswer `json:"routes,omitempty"`
}

const recordVersion = 1

func newRecord(node string) record {
	return record{
		Version: recordVersion, Node: node, LoadBalancers: map[string]string{}, Keys: map[string]string{}, Endpoints: map[string]string{},
		Pending: map[string]string{}, Forms: map[string]answer[form]{},
	}
}

// readRecord never fails. note says what cannot be used; properties tell our objects then.
func readRecord(s Store, node string) (r record, note string) {
	r = newRecord(node)
	b, err := s.Load()
	if err != nil {
		return r, fmt.Sprintf("The state file cannot be read; objects of an earlier process are recognized by their properties: %v", err)
	}
	if b == nil {
		return r, ""
	}
	var read record
	switch err := json.Unmarshal(b, &read); {
	case err != nil:
		return r, fmt.Sprintf("The state file is damaged and will be replaced; objects of an earlier process are recognized by their properties: %v", err)
	case read.Version != recordVersion:
		return r, fmt.Sprintf("The state file has version %d, want %d; it will be replaced, and objects of an earlier process are recognized by their properties", read.Version, recordVersion)
	case read.Node != node:
		return r, fmt.Sprintf("The state file is of node %q, not of %q; it will be replaced, and nothing in it counts as ours", read.Node, node)
	}
	for _, m := range []struct{ to, from map[string]string }{
		{r.LoadBalancers, read.LoadBalancers}, {r.Keys, read.Keys}, {r.Endpoints, read.Endpoints}, {r.Pending, read.Pending},
	} {
		for k, v := range m.from {
			m.to[k] = v
		}
	}
	maps.Copy(r.Forms, read.Forms)
	r.Routes = read.Routes
	return r, ""
}

func (r *record) empty() bool { return len(r.LoadBalancers)+len(r.Endpoints)+len(r.Pending) == 0 }

// HNS may give an object back in another form than it was asked for: with a flag left out, say, or another source VIP. Such
// an object is not made again at every resync, which would cut its connections each time.

// maxRepairs is how often an object is made again for the same difference.
const maxRepairs = 2

// maxForms bounds what is remembered of objects, most of which are gone.
const maxForms = 1 << 16

// form is the properties of a load balancer that HNS could give back in another form.
type form struct {
	TargetPort   uint16
	SourceVIP    netip.Addr
	DSR          bool
	Flags        PortFlags
	Distribution Distribution
	Unsupported  bool
}

func (lb *LoadBalancer) form() form {
	return form{lb.TargetPort, lb.SourceVIP, lb.DSR, lb.Flags, lb.Distribution, lb.Unsupported}
}

func (lb *LoadBalancer) setForm(f form) {
	lb.TargetPort, lb.SourceVIP, lb.DSR, lb.Flags, lb.Distribution, lb.Unsupported = f.TargetPort, f.SourceVIP, f.DSR, f.Flags, f.Distribution, f.Unsupported
}

// differences names the fields of HNS in which g differs from f, each with both values.
func (f form) differences(g form) string {
	var d fieldDifferences
	d.add("InternalPort", f.TargetPort, g.TargetPort)
	d.add("SourceVIP", addrText(f.SourceVIP), addrText(g.SourceVIP))
	d.add("direct server return", f.DSR, g.DSR)
	d.add("Flags of its port", f.Flags, g.Flags)
	d.add("DistributionType", f.Distribution, g.Distribution)
	d.add("other properties", f.Unsupported, g.Unsupported)
	return strings.Join(d, ", ")
}

type fieldDifferences []string

func (d *fieldDifferences) add(field string, asked, got any) {
	if asked != got {
		*d = append(*d, fmt.Sprintf("%s %v, not %v", field, got, asked))
	}
}

// answer is what HNS gives back for a form that it was asked for. The record keeps it: a new process would make the
// object again otherwise.
type answer[T form | endpointRoute] struct {
	Asked, Got T
	Repairs    int // that led to the same
	Settled    bool
}

// endpointRoute is where a remote endpoint leads.
type endpointRoute struct {
	MAC      string
	Provider netip.Addr
}

func routeOf(e *Endpoint) endpointRoute { return endpointRoute{e.MAC, e.Provider} }

// routeAnswer is the answer for the route of a remote endpoint of ours.
type routeAnswer = answer[endpointRoute]

func (r endpointRoute) differs(e *Endpoint) bool {
	return misrouted(e, Target{MAC: r.MAC, Provider: r.Provider})
}

// differences names the fields of HNS in which s differs, each with both values.
func (r endpointRoute) differences(s endpointRoute) string {
	var d fieldDifferences
	d.add("MacAddress", r.MAC, s.MAC)
	d.add("ProviderAddress", addrText(r.Provider), addrText(s.Provider))
	return strings.Join(d, ", ")
}
