// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reading reads once what a node must forward, for commands that change nothing.
// The configuration and manifests, or an API server, go in. A snapshot comes out. A
// Server says where the running proxy is, which a Client or Top asks instead.
package reading

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/peers"
	"kubeproxy/common/printable"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/platform/mode"
)

// Reader reads what one node must forward in one mode.
type Reader struct {
	Config  *config.Config
	Mode    mode.Descriptor
	Node    string
	Version string // of this program
	// Local means that the node is this one: its addresses and programs' ports are used, too.
	Local bool
	// Report, if set, receives the faults of objects, a line each.
	Report func(line string)
	// Assign are the ranges of the ClusterIPs for Services of manifests without one.
	Assign []netip.Prefix
	// Contents, if set, are those of standard input and pipes, see ReadPipes. Else Manifests reads them.
	Contents map[string][]byte
	// Wrap, if set, returns a Sink that gets the objects before the Tracker does.
	Wrap func(*track.Tracker) source.Sink

	// Tracker is set by what reads an API server: it has what was read.
	Tracker *track.Tracker
	// Nodes is set to the nodes of endpoints with direct return, and this one, as far as they are known.
	Nodes peers.Fixed

	faults []string // of Services as manifests have them
}

// MostProblems is how many problems that appear at once are reported. The rest is counted.
const MostProblems = 20

// tracker returns a Tracker, and the Sink for its objects.
func (r *Reader) tracker() (*track.Tracker, source.Sink) {
	t := track.New(agent.TrackOptions(r.Mode, r.Config, r.Node))
	t.Subscribe(track.Listener{Found: func(all []track.Problem) {
		for _, p := range all[:min(len(all), MostProblems)] {
			r.report("problem: %s", p)
		}
		if n := len(all) - MostProblems; n > 0 {
			r.report("problem: and %d more problems", n)
		}
	}})
	if r.Local {
		host.ReadOnce(t)
	}
	if r.Wrap != nil {
		return t, r.Wrap(t)
	}
	return t, t
}

func (r *Reader) report(format string, args ...any) {
	if r.Report != nil {
		r.Report(fmt.Sprintf(format, args...))
	}
}

// stdin is the path of standard input.
const stdin = "-"

// Manifests reads files, directories, pipes and standard input, which is the path "-". It
// uses what it can, so it may return a Tracker with a snapshot and an error.
func (r *Reader) Manifests(ctx context.Context, paths []string) (*track.Tracker, error) {
	t, sink := r.tracker()
	contents := r.Contents
	if contents == nil {
		var err error
		if contents, err = ReadPipes(paths); err != nil {
			return t, err
		}
	}
	files := source.Manifests{
		Paths: paths, NodeName: r.Node, Contents: contents,
		Note: func(s string) { r.report("note: %s", printable.Text(s)) },
	}
	r.faults = nil
	err := files.Load(ctx, &assigner{Sink: sink, ranges: r.Assign, problem: func(format string, args ...any) {
		r.faults = append(r.faults, fmt.Sprintf(format, args...))
	}})
	for _, f := range r.faults[:min(len(r.faults), MostProblems)] {
		r.report("problem: %s", printable.Text(f))
	}
	r.readNodes(ctx, t.Latest(), files.Nodes)
	return t, err
}

// readNodes sets Nodes. A user who may not read them gets none.
func (r *Reader) readNodes(ctx context.Context, s *service.Snapshot, read func(context.Context, []string, func(string, []netip.Addr)) error) {
	r.Nodes = peers.Fixed{}
	if s == nil || len(service.DirectNodes(s)) == 0 {
		return
	}
	err := read(ctx, append(service.DirectNodes(s), s.Node.Name), func(name string, all []netip.Addr) { r.Nodes[name] = all })
	if err != nil {
		r.report("note: nodes with direct return are not known: %s", printable.Error(err))
	}
}

// ReadPipes returns the content of standard input and of pipes, by path. They can be read once only.
func ReadPipes(paths []string) (map[string][]byte, error) {
	contents := map[string][]byte{}
	for _, p := range paths {
		if err := readPipe(p, contents); err != nil {
			return nil, fmt.Errorf("read manifests: %s: %w", printable.Text(p), err)
		}
	}
	return contents, nil
}

// readPipe adds the content of a pipe or of standard input, and nothing for other paths.
func readPipe(path string, contents map[string][]byte) error {
	from := os.Stdin
	if path != stdin && path != "/dev/stdin" {
		info, err := os.Stat(path)
		if err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
			return nil
		}
		if from, err = os.Open(path); err != nil {
			return err
		}
		defer from.Close()
	}
	if contents[path] != nil {
		return errors.New("it can be read once only")
	}
	content, err := io.ReadAll(io.LimitReader(from, source.MaxManifest+1))
	if err == nil && len(content) > source.MaxManifest {
		err = fmt.Errorf("it has more than %d bytes", source.MaxManifest)
	}
	contents[path] = append([]byte{}, content...)
	return err
}

// Faults returns an error if the manifests that t was read from have Services of which
// nothing is served, or not on the NodePorts that they want, because of what they say.
func (r *Reader) Faults(t *track.Tracker) error {
	served := map[types.NamespacedName]bool{}
	for _, f := range service.Families {
		for p := range t.Latest().Ports(f) {
			if len(p.Frontends) > 0 {
				served[types.NamespacedName{Namespace: p.Name.Namespace, Name: p.Name.Name}] = true
			}
		}
	}
	faults, addressless := len(r.faults), 0
	for _, p := range t.Problems() {
		if p.Kind != track.OfService || p.ThisNode || served[p.Service] && p.Field != "spec.type" && !strings.HasSuffix(p.Field, ".nodePort") {
			continue
		}
		if faults++; p.Field == "spec.clusterIP" {
			addressless++
		}
	}
	switch {
	case addressless > 0 && len(r.Assign) == 0:
		return fmt.Errorf("%d Services cannot be served as they are, %d of them for want of a clusterIP, as in the output of helm template: "+
			"--assign-cluster-ips 10.96.0.0/16 assigns them", faults, addressless)
	case faults == 1:
		return errors.New("1 Service cannot be served as it is")
	case faults > 0:
		return fmt.Errorf("%d Services cannot be served as they are", faults)
	}
	return nil
}

// Ranges reads the values of --assign-cluster-ips.
func Ranges(values []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, v := range values {
		p, err := netip.ParsePrefix(v)
		switch {
		case err != nil:
			return nil, fmt.Errorf("--assign-cluster-ips: %q is no range: want such as 10.96.0.0/16 or 10.96.0.0/16,fd00:10:96::/112", v)
		case p.Addr().BitLen()-p.Bits() < 2:
			return nil, fmt.Errorf("--assign-cluster-ips: %s has no room: want at least four addresses", p)
		case slices.ContainsFunc(all, func(o netip.Prefix) bool { return o.Addr().Is4() == p.Addr().Is4() }):
			return nil, fmt.Errorf("--assign-cluster-ips: %s is a second range of its family: want one", p)
		}
		all = append(all, p)
	}
	return all, nil
}

// API reads from the API server of the configuration, for a time.
func (r *Reader) API(ctx context.Context, timeout time.Duration) (*service.Snapshot, error) {
	to, err := agent.KubeClient(r.Config, r.Version).Config()
	if err != nil {
		return nil, err
	}
	return r.Server(ctx, to, timeout)
}

// Server reads from an API server, for a time.
func (r *Reader) Server(ctx context.Context, to *rest.Config, timeout time.Duration) (*service.Snapshot, error) {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	t, sink := r.tracker()
	var latest atomic.Pointer[error]
	api := source.APIServer{
		Config: to, NodeName: r.Node, ProxyName: r.Config.ProxyName,
		Report: func(err error) { latest.Store(&err) },
	}
	err := api.Run(ctx, endingSink{sink, cancel})
	if s := t.Latest(); s != nil {
		r.Tracker = t
		nodes, cancel := context.WithTimeout(outer, timeout)
		defer cancel()
		r.readNodes(nodes, s, api.Nodes)
		return s, nil
	}
	if last := latest.Load(); last != nil {
		err = errors.Join(err, *last)
	}
	return nil, errors.Join(fmt.Errorf("not all Services could be read from the API server %s in %s", to.Host, timeout), err)
}

// endingSink calls end when all is read.
type endingSink struct {
	source.Sink
	end func()
}

// Synced implements source.Sink.
func (s endingSink) Synced() {
	s.Sink.Synced()
	s.end()
}

// maxListeners bounds how many listeners a line names.
const maxListeners = 10

// LocalhostListeners describes the ports of loopback addresses on which the process would
// listen for want, and those that nothing answers. It is empty if there are none.
func LocalhostListeners(d mode.Descriptor, want *service.Snapshot) []string {
	var lines []string
	for _, f := range service.Families {
		if !d.ListensOnLocalhost(f) {
			continue
		}
		at := service.Localhost(f)
		if all := portsNamed(want, f, userspace.LocalhostPort); all != "" {
			lines = append(lines, fmt.Sprintf("no rule leads from %s to NodePorts: kube-proxy itself listens there on %s", at, all))
		}
		if all := portsNamed(want, f, userspace.LocalhostLost); all != "" {
			lines = append(lines, fmt.Sprintf("nobody answers NodePorts at %s on %s: kube-proxy relays TCP and UDP alone there", at, all))
		}
	}
	return lines
}

// portsNamed names some of the ports of f for which at yields one.
func portsNamed(want *service.Snapshot, f service.Family, at func(*service.Snapshot, *service.Port) uint16) string {
	var all []string
	n := 0
	for p := range want.Ports(f) {
		port := at(want, p)
		if port == 0 {
			continue
		}
		if n++; n <= maxListeners {
			all = append(all, fmt.Sprintf("%d/%s (%s)", port, p.Name.Protocol, p.Name))
		}
	}
	if n > maxListeners {
		return strings.Join(all, ", ") + fmt.Sprintf(" and %d more", n-maxListeners)
	}
	return strings.Join(all, ", ")
}
