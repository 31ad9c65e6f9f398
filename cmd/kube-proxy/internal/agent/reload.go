// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/condition"
	filewatch "kubeproxy/common/files"
	"kubeproxy/common/kubeclient"
	"kubeproxy/common/metrics"
	"kubeproxy/common/printable"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// ErrRestart ends the proxy, so that a new process loads what this one cannot apply.
var ErrRestart = errors.New("the configuration needs a new process")

// reloader follows the file of --config. It validates the content as a start does,
// compares it with the configuration in force, and applies it if that is possible.
type reloader struct {
	*proxy
	servers *servers
	loops   []*reconcile.Loop
	hangup  <-chan os.Signal // check now
}

// run follows the file until ctx ends, at once after SIGHUP, or a change needs ErrRestart.
func (r *reloader) run(ctx context.Context) error {
	r.reports.Metrics.Loaded(time.Now())
	if r.options.Flags.Config == "" {
		return nil
	}
	return r.newFollower().Run(ctx)
}

// newFollower returns what reads the file when it no longer is as at the start.
func (r *reloader) newFollower() *filewatch.Follower {
	return &filewatch.Follower{
		Path: r.options.Flags.Config, Read: r.options.Flags.ReadFile, Key: r.options.loadedKey, Changed: r.check, Signals: r.hangup,
		WatchFailed: func(err error) {
			r.log.Info("The configuration file is polled, because it cannot be watched", "file", r.active.file, "every", filewatch.FollowInterval, "err", err.Error())
		},
	}
}

// notifyHangup returns a channel of SIGHUPs, which otherwise end the process, if there is a file to
// read again, and a function that ends the subscription.
func notifyHangup(o *Options) (hangup <-chan os.Signal, stop func()) {
	if o.Flags.Config == "" {
		return nil, func() {}
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c, func() { signal.Stop(c) }
}

// check validates the content of the file, and puts it in force if that is possible.
func (r *reloader) check(ctx context.Context, file filewatch.Content) error {
	c, err := (*config.Config)(nil), file.Err
	if err == nil {
		c, err = config.LoadFrom(&r.options.Flags, r.system.OS, file.Data)
	}
	if err == nil {
		err = joinErrors(r.newWarnings(c))
	}
	if err != nil {
		r.reject(err)
		return nil
	}
	if c.Mode == r.request.configured { // the same request leads to the same mode
		c = r.withMode(c)
	}
	return r.adopt(ctx, c, config.Diff(r.active.config(), c, r.use()))
}

// newWarnings returns the warnings of c that are not in force. A start tolerates them, so that the
// node has a proxy. A reload does not: a misspelt field would undo a setting.
func (r *reloader) newWarnings(c *config.Config) []*config.FieldError {
	old := r.active.config().Warnings
	return slices.DeleteFunc(slices.Clone(c.Warnings), func(w *config.FieldError) bool {
		return slices.ContainsFunc(old, func(o *config.FieldError) bool { return o.Path == w.Path && o.Text == w.Text })
	})
}

func joinErrors(all []*config.FieldError) error {
	var errs []error
	for _, w := range all {
		errs = append(errs, w)
	}
	return errors.Join(errs...)
}

func (r *reloader) use() config.Use {
	return config.Use{Mode: r.selected.Mode, APIServer: len(r.options.Manifests) == 0}
}

// reject keeps the configuration in force.
func (r *reloader) reject(err error) {
	r.active.setFileError(err)
	r.setCondition(err.Error(), metrics.Rejected)
	r.log.Error(err, "The configuration file cannot be used; what is in force stays", "file", r.active.file)
}

// setCondition precedes the log line, so that a reader of the log finds the condition.
func (r *reloader) setCondition(text string, what metrics.Reload) {
	r.reports.Health.SetCondition(condition.Configuration, text)
	r.reports.Metrics.Reloaded(what, time.Now())
}

// adopt puts c in force, which differs by changes from the present configuration. It
// returns ErrRestart if that requires a new process.
func (r *reloader) adopt(ctx context.Context, c *config.Config, changes []config.Change) error {
	needed := pathsWith(changes, config.Restart)
	if len(needed) > 0 {
		if err := r.checkStartable(ctx, c); err != nil {
			r.reject(fmt.Errorf("a new process, which %s needs, could not start: %w", strings.Join(needed, ", "), err))
			return nil
		}
		r.reports.Metrics.Reloaded(metrics.Restart, time.Now())
		r.log.Info("The configuration file changed in a setting that only a new process can apply; ending, so that the supervisor starts a new one",
			"file", r.active.file, "changes", printable.Join(changes, "; "), "need", needed)
		return ErrRestart
	}
	if err := r.apply(ctx, c, changes); err != nil {
		r.reject(err)
		return nil
	}
	if len(changes) == 0 {
		r.setCondition("", metrics.Unchanged)
		r.log.Info("The configuration file was read again and means the same", "file", r.active.file)
		return nil
	}
	r.setCondition("", metrics.Applied)
	switch unused := pathsWith(changes, config.Unused); {
	case len(unused) == len(changes):
		r.log.Info("The configuration file changed in nothing that is in use", "file", r.active.file, "changes", printable.Join(changes, "; "))
	case len(unused) > 0:
		r.log.Info("The configuration file changed and is in force", "file", r.active.file, "changes", printable.Join(changes, "; "), "notInUse", unused)
	default:
		r.log.Info("The configuration file changed and is in force", "file", r.active.file, "changes", printable.Join(changes, "; "))
	}
	return nil
}

// logNew logs remarks on c that did not apply before.
func (r *reloader) logNew(c *config.Config) {
	old := r.active.config()
	fresh := *c
	fresh.Overrides = slices.DeleteFunc(slices.Clone(c.Overrides), func(o config.Override) bool { return slices.Contains(old.Overrides, o) })
	fresh.Notes = slices.DeleteFunc(slices.Clone(c.Notes), func(n config.Note) bool {
		return slices.ContainsFunc(old.Notes, func(o config.Note) bool { return o.Path == n.Path && o.Text == n.Text })
	})
	fresh.Warnings = nil // newWarnings has rejected new ones
	LogConfigIssues(r.log, &fresh)
}

// pathsWith returns the paths of the changes with an effect.
func pathsWith(changes []config.Change, e config.Effect) []string {
	var all []string
	for _, c := range changes {
		if c.Effect == e {
			all = append(all, c.Path)
		}
	}
	return all
}

// checkStartable returns why a process with c would not start. A proxy that works must
// not end for one that cannot start.
func (r *reloader) checkStartable(ctx context.Context, c *config.Config) error {
	var discard klog.Logger
	node, err := NodeName(c)
	if err != nil {
		return err
	}
	if _, err := r.options.newSource(r.process.Build.GitVersion, c, node, newSources(r.options), discard); err != nil {
		return err
	}
	_, err = r.options.newBackends(klog.NewContext(ctx, discard), c, r.request.annotated)
	return err
}

// apply passes c to all running parts. Only the logger may fail; then nothing has changed.
func (r *reloader) apply(ctx context.Context, c *config.Config, changes []config.Change) error {
	changed := func(prefix string) bool {
		return slices.ContainsFunc(changes, func(c config.Change) bool {
			return c.Effect == config.Hot && strings.HasPrefix(c.Path, prefix)
		})
	}
	if changed("logging.") {
		if err := r.process.Logs.Reconfigure(&c.Logging); err != nil {
			return err
		}
	}
	r.logNew(c)
	old, now := r.withMode(r.active.config()), r.withMode(c)
	if pace := timingOf(r.selected.Descriptor, now); pace != timingOf(r.selected.Descriptor, old) {
		for _, l := range r.loops {
			l.SetTiming(pace)
		}
		r.reports.Health.SetSyncPeriod(pace.Resync)
	}
	to := TrackOptions(r.selected.Descriptor, now, r.node)
	if changed("clusterCIDR") || changed("detectLocal") {
		warnUnknownPods(to, r.log)
	}
	r.reports.Reconfigure(to)
	r.tracker.Reconfigure(to)
	r.servers.moveBoth(ctx, c, false)
	r.active.set(c)
	r.keepSettings(ctx)
	if changed("conntrack.") || changed("oomScoreAdj") {
		r.active.requestPrepare()
	}
	return nil
}

// withMode returns c with the mode in force, which c may leave open.
func (r *reloader) withMode(c *config.Config) *config.Config {
	now := *c
	now.Mode = r.selected.Name
	return &now
}

// activeConfig is the configuration in force.
type activeConfig struct {
	file string // empty without one
	// prepareRequests receives a value when configured system settings have changed.
	prepareRequests chan struct{}

	mu        sync.Mutex
	current   *config.Config
	loaded    time.Time
	fileError string // why the present file cannot be used; empty if it can
}

func newActiveConfig(file string, c *config.Config) *activeConfig {
	return &activeConfig{file: file, prepareRequests: make(chan struct{}, 1), current: c, loaded: time.Now()}
}

func (a *activeConfig) config() *config.Config {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.current
}

// set puts c in force.
func (a *activeConfig) set(c *config.Config) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.current, a.loaded, a.fileError = c, time.Now(), ""
}

// setFileError records why the file cannot be used; nil means that it can.
func (a *activeConfig) setFileError(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fileError = err.Error()
}

// requestPrepare requests that the system settings are applied again.
func (a *activeConfig) requestPrepare() {
	select {
	case a.prepareRequests <- struct{}{}:
	default:
	}
}

// status returns what /statusz shows of the configuration.
func (a *activeConfig) status() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]string{"Configuration loaded": a.loaded.UTC().Format(time.UnixDate)}
	if a.file != "" {
		all["Configuration file"] = a.file
	}
	if a.fileError != "" {
		all["Configuration file cannot be used"] = a.fileError
	}
	return all
}

// TrackOptions translates the settings of the configuration about traffic in mode d.
func TrackOptions(d mode.Descriptor, c *config.Config, node string) track.Options {
	ports := c.NodePorts()
	o := track.Options{
		NodeName:          node,
		NodePorts:         ports.Prefixes,
		NodePortsPrimary:  ports.Primary,
		MasqueradeAll:     d.Section(c).MasqueradeAll,
		IgnoreExternalIPs: c.IgnoreExternalIPs(),
		ProxyName:         c.ProxyName,
		Listed:            d.ListedEndpoints,

		NodePortsEverywhere: c.OS == config.Windows,
	}
	if c.OS == config.Linux {
		o.SilentEndpoints = track.Silent(c.SilentEndpoints.String())
		o.Selection, o.SelectionSlots = track.Selection(c.Selection.String()), c.SelectionSlots.Number()
		o.DirectReturn = c.DirectReturn
	}
	if ip := c.NodeIP(); ip.IsValid() {
		o.NodeIPs = []netip.Addr{ip}
	}
	switch c.DetectLocalMode {
	case config.ClusterCIDR, "": // the empty mode occurs on Windows, which has no default
		o.Pods = service.LocalPods{Prefixes: c.ClusterCIDRs()}
	case config.NodeCIDR:
		o.PodsFromNode = true
	case config.BridgeInterface:
		o.Pods = service.LocalPods{Interface: c.DetectLocal.BridgeInterface}
	case config.InterfaceNamePrefix:
		o.Pods = service.LocalPods{InterfacePrefix: c.DetectLocal.InterfaceNamePrefix}
	}
	return o
}

// defaultMinSync is the default of minSyncPeriod, which bounds the work of rounds. As most cost
// next to nothing, it bounds their cost instead; other values are used as they are.
const defaultMinSync, defaultCostFactor = time.Second, 50

// timingOf returns the times of rounds in mode d.
func timingOf(d mode.Descriptor, c *config.Config) reconcile.Timing {
	s := d.Section(c)
	p := reconcile.Timing{MinInterval: s.MinSyncPeriod, Resync: s.SyncPeriod, Retry: reconcile.Backoff{First: firstRetry, Max: s.SyncPeriod}}
	if s.MinSyncPeriod == defaultMinSync {
		p.CostFactor = defaultCostFactor
	}
	return p
}

// NodeName returns the name of the own Node.
func NodeName(c *config.Config) (string, error) {
	host := ""
	if c.HostnameOverride == "" {
		var err error
		if host, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("find the node's name: %w; set --hostname-override", err)
		}
	}
	name := c.NodeName(host)
	if name == "" {
		return "", fmt.Errorf("find the node's name: the host has none; set --hostname-override")
	}
	return name, nil
}

// apiSource reads an API server, and can change to what another kubeconfig names.
type apiSource struct {
	*source.APIServer
	client  *kubeclient.Options
	outages *kubeclient.Outages
	key     string // of the kubeconfig in use, as in filewatch.Content
	server  string // that it names
}

const (
	// connectTimeout bounds the wait for the first answer of another API server.
	connectTimeout = 10 * time.Second
	// maxConnectPause is the longest pause before each node tries the same kubeconfig again.
	maxConnectPause = time.Minute
)

// kubeconfig follows the file with the connection to the API server. The connection in use stays until that
// of a changed file works. The tokens, authorities and certificates in files of their own are the client's task.
type kubeconfig struct {
	*proxy
	api      *apiSource
	follower *filewatch.Follower

	text  string        // why the file cannot be used
	tried string        // the key of the content that was tried last
	next  time.Time     // when it is tried again
	pause time.Duration // before that
}

// followKubeconfig follows the kubeconfig until ctx ends, if there is one.
func (p *proxy) followKubeconfig(ctx context.Context) error {
	api, is := p.source.(*apiSource)
	if !is || api.client.Connection.Kubeconfig == "" {
		return nil
	}
	return p.newKubeconfig(api).follower.Run(ctx)
}

func (p *proxy) newKubeconfig(api *apiSource) *kubeconfig {
	k := &kubeconfig{proxy: p, api: api}
	k.follower = &filewatch.Follower{
		Path: api.client.Connection.Kubeconfig, Read: api.client.Read, Key: api.key, Changed: k.changed,
		WatchFailed: func(err error) {
			p.log.Info("The kubeconfig is polled, because it cannot be watched", "every", filewatch.FollowInterval, "err", err.Error())
		},
	}
	return k
}

// changed connects as the content says, if it says something else than what is in use.
func (k *kubeconfig) changed(ctx context.Context, c filewatch.Content) error {
	now := time.Now()
	switch {
	case c.Err != nil:
		k.reject(c.Err)
	case c.Key == k.api.key:
		k.accept("The kubeconfig is again the one in use")
	case c.Key == k.tried && now.Before(k.next):
		k.follower.Key = "" // so that a later check comes here again
	default:
		if c.Key != k.tried {
			k.tried, k.pause = c.Key, filewatch.FollowInterval
		}
		k.pause = min(2*k.pause, maxConnectPause)
		k.next = now.Add(k.pause)
		k.connect(ctx, c.Key)
	}
	return nil
}

// connect takes the connection that the file describes if it works.
func (k *kubeconfig) connect(ctx context.Context, key string) {
	to, err := k.api.client.Config()
	if err != nil {
		k.reject(err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := k.api.Use(ctx, to); err != nil {
		text := fmt.Errorf("kubeconfig %s: %s does not work: %w", printable.Text(k.follower.Path), to.Host, err)
		if remedy := k.api.client.Remedy(err); remedy != "" {
			text = fmt.Errorf("%w; %s", text, remedy)
		}
		k.reject(text)
		k.follower.Key = "" // once more, also if it stays as it is
		return
	}
	if err := k.reports.Events.Use(to); err != nil {
		k.log.Error(err, "Events go to the API server before")
	}
	k.api.outages.SetLog(k.log.WithValues("server", to.Host))
	k.api.key, k.api.server = key, to.Host
	k.accept("The kubeconfig changed and is in force; all is listed again")
}

// reject keeps the connection in use.
func (k *kubeconfig) reject(err error) {
	if text := err.Error(); text != k.text {
		k.text = text
		k.reports.Health.SetCondition(condition.Kubeconfig, text)
		k.log.Error(err, "The kubeconfig cannot be used; the connection in use stays, and a new process would not start")
	}
}

func (k *kubeconfig) accept(message string) {
	k.text, k.tried = "", ""
	k.reports.Health.SetCondition(condition.Kubeconfig, "")
	k.log.Info(message, "kubeconfig", k.follower.Path, "server", k.api.server)
}
