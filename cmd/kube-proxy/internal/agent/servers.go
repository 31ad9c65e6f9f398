// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/condition"
	"kubeproxy/common/errtree"
	"kubeproxy/common/explain"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/common/view"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// The names of the servers.
const (
	healthServer  = "health"
	metricsServer = "metrics"
)

// servers runs the HTTP servers of the configuration, and moves them when it changes.
type servers struct {
	group *errgroup.Group
	// reportListen receives the result of each attempt to listen, nil for success.
	reportListen func(name string, err error)
	// admin is what the metrics server serves except profiling.
	admin          health.Admin
	health         http.Handler
	tls            *tls.Config // nil for plain HTTP
	maxConnections int         // to each server
	metrics        replaceable

	mu      sync.Mutex
	running map[string][]*runningServer // the latest is the last one
}

// runningServer is a server that serves on an address or tries to.
type runningServer struct {
	addr  string
	stop  context.CancelFunc
	tried chan struct{} // closed after the first attempt
	done  chan struct{}
}

// moveBoth runs the servers at the addresses of c, health first, so that probes are answered if
// both have the same. With hardFail, one that is not available ends the group.
func (s *servers) moveBoth(ctx context.Context, c *config.Config, hardFail bool) {
	s.profile(c)
	if l := s.move(ctx, health.Server{Name: healthServer, Addr: c.HealthzBindAddress, HardFail: hardFail}); l != nil {
		select {
		case <-l.tried:
		case <-l.done:
		}
	}
	s.move(ctx, health.Server{Name: metricsServer, Addr: c.MetricsBindAddress, HardFail: hardFail})
}

func (s *servers) profile(c *config.Config) {
	a := s.admin
	a.Profiling = c.EnableProfiling
	s.metrics.replace(a.Handler())
}

// move starts a server, and returns it if it is new. The previous one of the same name goes
// on until the new one listens, unless it holds the port itself.
func (s *servers) move(ctx context.Context, to health.Server) *runningServer {
	s.mu.Lock()
	if list := s.running[to.Name]; len(list) > 0 && list[len(list)-1].addr == to.Addr {
		s.mu.Unlock()
		return nil
	}
	if portOf(to.Addr) == "0" { // no server
		s.mu.Unlock()
		waitEnded(s.stop(to.Name, nil, anyPort))
		s.reportListen(to.Name, nil)
		return nil
	}
	ctx, stop := context.WithCancel(ctx)
	l := &runningServer{to.Addr, stop, make(chan struct{}), make(chan struct{})}
	s.running[to.Name] = append(s.running[to.Name], l)
	s.mu.Unlock()
	to.Handler, to.Connections, to.TLS = s.health, health.NewConnections(s.maxConnections), s.tls
	if to.Name == metricsServer {
		to.Handler = &s.metrics
	}
	tried := sync.OnceFunc(func() { close(l.tried) })
	to.Attempted = func(err error) {
		tried()
		if ctx.Err() == nil {
			s.reportListen(to.Name, err)
		}
	}
	to.Listening = func(net.Addr) { s.stop(to.Name, l, anyPort) }
	to.Listen = func(ctx context.Context, network, addr string) (net.Listener, error) {
		return s.listen(ctx, to.Name, network, l)
	}
	s.group.Go(func() error {
		defer s.remove(to.Name, l)
		return to.Run(ctx)
	})
	return l
}

// listen binds the address of l. Its predecessor may occupy an overlapping address, as
// 0.0.0.0 overlaps 127.0.0.1, and is stopped for it.
func (s *servers) listen(ctx context.Context, name, network string, l *runningServer) (net.Listener, error) {
	bound, err := listenOn(ctx, network, l.addr)
	if err == nil || !errtree.InUse(err) {
		return bound, err
	}
	before := s.stop(name, l, portOf(l.addr))
	if len(before) == 0 {
		return nil, err
	}
	waitEnded(before)
	return listenOn(ctx, network, l.addr)
}

// listenOn listens. If another process has the address, the error names it.
func listenOn(ctx context.Context, network, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, addr)
	if err == nil || !errtree.InUse(err) {
		return l, err
	}
	if at, parseErr := netip.ParseAddrPort(addr); parseErr == nil {
		if holder := host.PortHolder(at); holder != "" {
			return nil, fmt.Errorf("%w, by %s", err, holder)
		}
	}
	return nil, err
}

// maxConnections returns how many connections each server accepts. If the process may
// open few files, most are reserved for programming the node. A limit of files may be unknown.
func maxConnections(files uint64, known bool) int {
	const share = 16
	if known && files/share < health.MaxConnections {
		return int(files / share)
	}
	return health.MaxConnections
}

// anyPort stands for all ports.
const anyPort = ""

// stop stops the servers of a name that are older than l, or all of them if l is nil, and
// of these only those on port. It returns the stopped ones.
func (s *servers) stop(name string, l *runningServer, port string) []*runningServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	var stopped []*runningServer
	for _, x := range s.running[name] {
		if x == l {
			break
		}
		if port == anyPort || port == portOf(x.addr) {
			x.stop()
			stopped = append(stopped, x)
		}
	}
	return stopped
}

func (s *servers) remove(name string, l *runningServer) {
	l.stop()
	s.mu.Lock()
	s.running[name] = slices.DeleteFunc(s.running[name], func(x *runningServer) bool { return x == l })
	s.mu.Unlock()
	close(l.done)
}

func waitEnded(list []*runningServer) {
	for _, l := range list {
		<-l.done
	}
}

// portOf returns the port of addr, 0 if it has none.
func portOf(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "0"
	}
	return port
}

// replaceable is a handler that can be replaced.
type replaceable struct{ now atomic.Pointer[http.Handler] }

func (r *replaceable) replace(h http.Handler) { r.now.Store(&h) }

// ServeHTTP implements http.Handler.
func (r *replaceable) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	(*r.now.Load()).ServeHTTP(w, q)
}

// newServers returns the servers of p, which run in group.
func (p *proxy) newServers(group *errgroup.Group) (*servers, error) {
	secure, err := p.secure()
	if err != nil {
		return nil, err
	}
	return &servers{
		group: group,
		tls:   secure,
		reportListen: func(name string, err error) {
			text := ""
			if err != nil {
				text = err.Error()
			}
			p.reports.Health.SetCondition(condition.Server.Of(name), text)
			p.reports.Events.ReportServer(name, err)
		},
		health: p.reports.Health.Handler(health.Observer{
			Answered: p.reports.Metrics.HealthAnswered,
			Checked: func(path string, f service.Family, healthy bool) {
				p.reports.Metrics.Checked(metrics.Check{Name: f.String(), Type: path[1:], Passed: healthy})
			},
		}),
		admin:          p.admin(),
		running:        map[string][]*runningServer{},
		maxConnections: maxConnections(host.FilesLimit()),
	}, nil
}

// secure returns the certificate for HTTPS, nil if the flags name none.
func (p *proxy) secure() (*tls.Config, error) {
	cert, key := p.options.CertFile, p.options.KeyFile
	switch {
	case cert == "" && key == "":
		return nil, nil
	case cert == "" || key == "":
		return nil, errors.New("--tls-cert-file and --tls-private-key-file: want both, or neither")
	}
	c, err := health.LoadCertificate(cert, key, func(err error) {
		text := ""
		if err != nil {
			text = err.Error() + "; the servers use the previous one"
		}
		p.reports.Health.SetCondition(condition.Certificate, text)
	})
	if err != nil {
		return nil, err
	}
	return c.Config(), nil
}

// admin returns the handlers of the metrics server except profiling.
func (p *proxy) admin() health.Admin {
	r, mode := p.reports, string(p.selected.Name)
	started := time.Now()
	explainer := &explain.Server{
		Tracker: p.tracker, Trace: p.trace, Local: isLocal, Interfaces: interfaces, Relays: p.selected.Relays, Pod: p.pod, Probed: p.probed, Reaches: reaches, Waiting: host.Waiting,
		Follower: p.follower, Notes: r.Ended.Notes,
	}
	about := func() servicestate.ProxyInfo {
		return servicestate.ProxyInfo{
			Mode: mode, Node: p.node, Version: p.process.Build.GitVersion, Started: started.UTC(), Health: r.Health.Report(),
			Endpoints: p.tracker.Ready(), Layers: p.layers(), Accelerated: byName(accelerated(p.selected.Backends)), Silent: r.Silent.List(), Ended: r.Ended.List(),
		}
	}
	return health.Admin{
		Mode:     mode,
		Metrics:  r.Metrics.Handler(),
		SLIs:     r.Metrics.SLIs(),
		Services: r.Services.Handler(about),
		Explain:  explainer.Handler(),
		Survey:   explainer.SurveyHandler(),
		Traffic:  p.trafficHandler(),
		View:     view.Handler(func() *statusview.Overview { return statusview.NewOverview(r.Services.Response(about())) }),
		Config:   func() any { return p.active.config().KubeProxyConfiguration },
		Status: &health.Status{
			Started: started, Version: p.process.Build.GitVersion, GoVersion: runtime.Version(), More: p.active.status,
		},
		Flags:     func() map[string]string { return flagValues(p.options.FlagSet) },
		Verbosity: p.process.Logs.Verbosity,
		Exposed:   p.options.Exposed,
	}
}

// layers names what works beside the rules of the mode.
func (p *proxy) layers() (all []string) {
	has := func(part func(*mode.Backend) bool) bool { return slices.ContainsFunc(p.selected.Backends, part) }
	if has(func(b *mode.Backend) bool { return b.Accelerated != nil }) {
		all = append(all, "acceleration")
	}
	if has(func(b *mode.Backend) bool { return b.Tunnel != nil }) {
		all = append(all, "direct-return")
	}
	if p.selected.silent != nil {
		all = append(all, "silent-endpoints="+p.active.config().SilentEndpoints.String())
	}
	return all
}

// byName returns counters with the names of families, nil for none.
func byName(counters map[service.Family]uint64) map[string]uint64 {
	var all map[string]uint64
	for f, n := range counters {
		if all == nil {
			all = map[string]uint64{}
		}
		all[f.String()] = n
	}
	return all
}

// flagValues returns the value of every flag, given or not.
func flagValues(flags *pflag.FlagSet) map[string]string {
	all := map[string]string{}
	flags.VisitAll(func(f *pflag.Flag) { all[f.Name] = f.Value.String() })
	return all
}
