// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/files"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// plan is the work of one sync. Its changes come from a dry run of the same work.
type plan struct {
	backend *Backend
	next    *state
	work    *work
	changes []desiredChange
	// reserve, if not nil, is the source VIP's endpoint that must be created.
	reserve  *Endpoint
	fullSync bool
	drift    []string

	dry *pass // p.work without effects
}

// desiredChange is the change of one Service port's desired state.
type desiredChange struct {
	name     service.PortName
	from, to DesiredState
}

// delta returns the change of the claims.
func (p *plan) delta() claims {
	c := newClaims()
	for _, x := range p.changes {
		c.add(x.from, -1)
		c.add(x.to, 1)
	}
	return c
}

// Empty implements reconcile.Plan. Failures and limits are work that is not done, so a plan
// with only these is not empty.
func (p *plan) Empty() bool {
	return len(p.dry.changes)+len(p.dry.failed)+len(p.limits()) == 0 && p.reserve == nil
}

// Outcome implements reconcile.Plan.
func (p *plan) Outcome() reconcile.Outcome {
	return reconcile.Outcome{
		Err: errors.Join(portErrors(p.backend.family, p.dry.failed, p.limits())...), FullSync: p.fullSync, Drift: p.drift,
		Notes: p.next.notes, Unavailable: p.next.site.Unavailable,
	}
}

// Changes implements reconcile.Plan.
func (p *plan) Changes() reconcile.Changes {
	if p.reserve == nil {
		return p.dry.changes
	}
	return append(reconcile.Changes{p.reserveChange()}, p.dry.changes...)
}

// reserveChange is the change that reserves a source VIP.
func (p *plan) reserveChange() reconcile.Change {
	at := "at an address that HNS chooses"
	if len(p.reserve.Addrs) > 0 {
		at = p.reserve.Addrs[0].String()
	}
	return reconcile.Change{Text: fmt.Sprintf("+ endpoint %s %s", p.reserve.Name, at)}
}

// addChange adds a change to the plan that a dry pass makes. n is the Service port of a
// load balancer.
func (p *pass) addChange(n service.PortName, format string, args ...any) {
	if !p.dry {
		return
	}
	c := reconcile.Change{Text: fmt.Sprintf(format, args...), Port: n}
	if n.Namespace == unknownNamespace {
		c = reconcile.Change{Text: c.String()}
	}
	p.changes = append(p.changes, c)
}

// Apply implements reconcile.Plan. If an answer shows that HNS holds something other than
// the listing, Apply lists, compares and applies once more.
func (p *plan) Apply(ctx context.Context) reconcile.Outcome {
	last, err := p.program(ctx)
	out := last.Outcome()
	out.Err, out.FullSync, out.Drift = err, p.fullSync, p.drift
	return out
}

// program makes the changes of p. It returns the last plan that it made.
func (p *plan) program(ctx context.Context) (last *plan, err error) {
	b := p.backend
	b.state = nil
	if err := p.reserveVIP(ctx); err != nil {
		return p, err
	}
	done := p.execute(ctx)
	b.host.save()
	if done.stale && done.fatal == nil {
		again, err := b.planAll(ctx, p.next.snapshot)
		if err == nil {
			p, err = again, again.reserveVIP(ctx)
		}
		if err != nil {
			return p, errors.Join(append(portErrors(b.family, done.failed), err)...)
		}
		done = p.execute(ctx)
		b.host.save()
	}
	if done.fatal != nil {
		return p, fmt.Errorf("program HNS: %w", done.fatal)
	}
	p.finish(done)
	return p, errors.Join(portErrors(b.family, done.failed, p.limits())...)
}

func (p *plan) execute(ctx context.Context) *pass {
	b := p.backend
	b.host.recordPending(p.dry.creates)
	applied := newPass(ctx, b.host, &p.next.site, b.family, p.next.model)
	applied.do(p.work)
	b.host.markWritten()
	b.host.confirm(applied.owned)
	return applied
}

// reserveVIP creates the source VIP's endpoint if p needs it. HNS may assign another address
// than requested, which changes the desired state of every load balancer.
func (p *plan) reserveVIP(ctx context.Context) error {
	if p.reserve == nil {
		return nil
	}
	b := p.backend
	defer b.host.markWritten()
	e, err := b.host.driver.CreateEndpoint(ctx, *p.reserve)
	if (errors.Is(err, ErrExists) || errors.Is(err, ErrRefused)) && !b.options.SourceVIP.IsValid() && len(p.reserve.Addrs) > 0 {
		free := *p.reserve
		free.Addrs = nil
		e, err = b.host.driver.CreateEndpoint(ctx, free)
	}
	if err != nil {
		return fmt.Errorf("reserve the source VIP in network %q: %w; want --source-vip with an address that is free", p.next.site.Network.Name, err)
	}
	if len(e.Addrs) == 0 {
		return fmt.Errorf("reserve the source VIP in network %q: HNS gave endpoint %s no address; want --source-vip", p.next.site.Network.Name, e.ID)
	}
	b.host.recordEndpoint(&e)
	b.host.report(fmt.Sprintf("Source VIP: reserved %s in network %q as endpoint %s", e.Addrs[0], p.next.site.Network.Name, e.Name))
	p.next.model.putEndpoint(&e)
	p.reserve = nil
	if p.next.site.SourceVIP != e.Addrs[0] {
		p.next.site.SourceVIP = e.Addrs[0]
		p.work = b.workAll(p.next, nil)
		b.dryRun(ctx, p)
	}
	return nil
}

// finish records what HNS holds now, as far as that is known. A nil pass means that there
// was nothing to do.
func (p *plan) finish(done *pass) {
	b, next := p.backend, p.next
	if len(p.changes) > 0 {
		p.commitChanges()
	}
	b.reportNotes(next)
	b.host.reportShortage(b.family, done.shortageText())
	if done == nil {
		for _, a := range p.dry.adoptions {
			b.host.recordBalancer(a.lb, a.name.String())
		}
		b.host.confirm(p.dry.owned)
		b.host.save()
		next.clean = true
		b.state = next
		return
	}
	next.clean = len(done.failed) == 0
	next.retry = slices.SortedFunc(maps.Keys(done.failed), service.PortName.Compare)
	next.relistEndpoints = done.relistEndpoints
	if done.stateUnknown || slices.ContainsFunc(slices.Collect(maps.Values(next.limits)), isTemporary) {
		return // the next plan lists
	}
	b.state = next
}

// isTemporary reports whether a limit may disappear on its own.
func isTemporary(limits []error) bool {
	return slices.ContainsFunc(limits, func(err error) bool { return !errors.Is(err, errors.ErrUnsupported) })
}

// commitChanges applies the changes to the claims, limits and notes in next.
func (p *plan) commitChanges() {
	if slices.ContainsFunc(p.changes, func(x desiredChange) bool { return len(x.from.Notes)+len(x.to.Notes) > 0 }) {
		p.next.notes = maps.Clone(p.next.notes)
	}
	for _, x := range p.changes {
		p.next.claims.add(x.from, -1)
		p.next.claims.add(x.to, 1)
		p.next.setLimits(x.name, x.to)
	}
	p.changes = nil
}

// limits returns what HNS cannot provide for each Service port after this plan.
func (p *plan) limits() map[service.PortName][]error {
	if len(p.changes) == 0 {
		return p.next.limits
	}
	all := maps.Clone(p.next.limits)
	for _, x := range p.changes {
		delete(all, x.name)
		if len(x.to.Limits) > 0 {
			all[x.name] = x.to.Limits
		}
	}
	return all
}

// Store keeps a small document across restarts.
type Store interface {
	// Load returns the document that was saved last, or nil.
	Load() ([]byte, error)
	// Save replaces the document atomically. A nil document deletes it.
	Save(document []byte) error
}

// FileStore is a Store in the file with that path. Save creates its directory.
type FileStore string

// StateFile returns the path of the file in which a node records its HNS objects. It is in
// the folder for data of system programs.
func StateFile() string {
	data := os.Getenv("ProgramData")
	if data == "" {
		data = `C:\ProgramData`
	}
	return filepath.Join(data, "kube-proxy", "hns-state.json")
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

// record lists the objects that this proxy created, and their purpose. HNS load balancers
// have no names. A later process recognises ours by the record, and otherwise by their
// properties.
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
	Forms  map[string]answer          `json:"forms,omitempty"`
	Routes map[netip.Addr]routeAnswer `json:"routes,omitempty"`
}

const recordVersion = 1

func newRecord(node string) record {
	return record{
		Version: recordVersion, Node: node, LoadBalancers: map[string]string{}, Keys: map[string]string{}, Endpoints: map[string]string{},
		Pending: map[string]string{}, Forms: map[string]answer{},
	}
}

// readRecord never fails. note describes what cannot be used. Then our objects are
// recognised by their properties.
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

// backoff is the period in which no working load balancer is deleted for an endpoint that
// HNS rejects.
type backoff struct {
	delay time.Duration
	until time.Time
}

// minBackoff and maxBackoff are the first and the longest period.
const minBackoff, maxBackoff = 2 * time.Second, 5 * time.Minute

// startBackoff records that HNS now rejects the endpoints.
func (h *Host) startBackoff(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.endpointBackoff) >= 1024 { // mostly of deleted pods
		clear(h.endpointBackoff)
	}
	for _, id := range ids {
		h.endpointBackoff[id] = h.endpointBackoff[id].next(h.now(), minBackoff)
	}
}

// resetBackoff records that HNS accepts the endpoints.
func (h *Host) resetBackoff(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.endpointBackoff) == 0 {
		return
	}
	for _, id := range ids {
		delete(h.endpointBackoff, id)
	}
}

func (h *Host) inBackoff(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now().Before(h.endpointBackoff[id].until)
}

// replaceSkippingBackoff replaces have with lb, without the endpoints in backoff. The
// load balancer cannot be changed in place, so each attempt to add an endpoint removes
// the Service's load balancer for a moment.
func (p *pass) replaceSkippingBackoff(have, lb *LoadBalancer, n service.PortName) error {
	less := lb.withEndpoints(slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool {
		return !has(have.Endpoints, id) && p.host.inBackoff(id)
	}))
	if len(less.Endpoints) == 0 || len(less.Endpoints) == len(lb.Endpoints) {
		return p.replace(have, lb, n)
	}
	err := error(&reconcile.DegradedError{Err: pendingError(fmt.Sprintf("HNS refused load balancer %s with %s, whose switch port is not there yet; it is tried again in a while", lb.Key, p.formatDiff(less.Endpoints, lb.Endpoints)))})
	if have.equal(less) {
		have.Kind = lb.Kind
		p.recordOwned(have, n)
		return err
	}
	return errors.Join(p.replace(have, less, n), err)
}
