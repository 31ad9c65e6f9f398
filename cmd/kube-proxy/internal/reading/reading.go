// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/printable"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Reader reads what one node must forward in one mode.
type Reader struct {
	Config  *config.Config
	Mode    mode.Descriptor
	Node    string
	Version string // of this program
	// Local means that the node is the one of this process. Then its addresses and the
	// ports of its programs are used, too.
	Local bool
	// Report, if set, receives the faults of objects, a line each.
	Report func(line string)
	// Wrap, if set, returns a Sink that gets the objects before the Tracker does.
	Wrap func(*track.Tracker) source.Sink
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

// Manifests reads files and directories. It uses what it can, so it may return a Tracker
// with a snapshot and an error.
func (r *Reader) Manifests(ctx context.Context, paths []string) (*track.Tracker, error) {
	t, sink := r.tracker()
	files := source.Manifests{
		Paths: paths, NodeName: r.Node,
		Note: func(s string) { r.report("note: %s", printable.Text(s)) },
	}
	err := files.Load(ctx, sink)
	return t, err
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
