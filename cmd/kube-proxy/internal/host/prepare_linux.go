// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/condition"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/sysctl"
	"kubeproxy/platform/mode"
)

// Prepare applies the system settings. Each that fails is a warning in the log. There is an
// error, which names them, if no setting could be made: the proxy goes on without a setting,
// and has a condition for it, so a part of them must not keep it from starting. Forwarding is
// often enabled later by other programs, so a failure there is never an error.
func Prepare(ctx context.Context, c *config.Config) error {
	p := &nodePreparer{files: sysctl.Host(), log: klog.FromContext(ctx)}
	for _, f := range service.Families {
		// The probe loads the connection tracking module of the kernel, whose settings do
		// not exist before. The proxy itself will report the error of a probe.
		if err := sysctl.WithConntrackHint(p.files, nftables.Probe(f)); err != nil {
			p.log.Info("Warning: the proxy could not program a family here", "family", f.String(), "err", err)
		}
	}
	// The score would apply to this process, which exits.
	all := sysctl.Apply(p.files, Settings(c))
	p.report(append(slices.Clone(all), sysctl.Forwarding(p.files, service.Families[:]...)...))
	return settingsError(all)
}

// settingsError returns an error if settings are not as desired and this process can make
// none. Those of other network namespaces do not count, because no rights would help. The
// answer is the same when all is done again: what is as desired counts if it could be made.
func settingsError(all []sysctl.Outcome) error {
	var missing []string
	for _, o := range all {
		switch {
		case o.Writable:
			return nil
		case o.Action == sysctl.Failed && !errors.Is(o.Err, sysctl.ErrFixed):
			missing = append(missing, o.String())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("prepare the node: %d of %d settings are not as wanted, and none can be made: %s; run --init-only as root on the node's network, in a container with privileged: true",
		len(missing), len(all), strings.Join(missing, "; "))
}

// KeepPrepared applies system settings until all succeed, with conditions for failures.
func KeepPrepared(ctx context.Context, with Preparation) {
	p := &nodePreparer{files: sysctl.Host(), log: klog.FromContext(ctx), condition: with.Health.SetCondition}
	p.forwarding = func(f service.Family, name condition.Name, text string) {
		with.Health.SetBlockingCondition(name, text, text, f)
	}
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { WatchHiddenListeners(ctx, with.Tracker, with.Health) })
	p.run(ctx, with, func() []service.Family { return forwarded(with.Mode, with.Tracker.Latest()) })
}

// forwarded are the families of Services whose packets the kernel forwards.
func forwarded(d mode.Descriptor, s *service.Snapshot) []service.Family {
	var used []service.Family
	for _, f := range service.Families {
		if s != nil && s.Len(f) > 0 && !d.Relays {
			used = append(used, f)
		}
	}
	return used
}

// settingsRetry is between tries of failed settings, forwardingInterval between looks at those of
// other programs, which are a hint for who searches lost traffic.
const (
	settingsRetry      = time.Minute
	forwardingInterval = 5 * time.Second
)

// Tracked returns nil while the kernel does not track connections.
func Tracked() *metrics.Tracked {
	now, limit, err := sysctl.Connections(sysctl.Host())
	if err != nil {
		return nil
	}
	return &metrics.Tracked{Entries: now, Limit: limit}
}

// nodePreparer applies settings and reports changes in their state.
type nodePreparer struct {
	files     sysctl.Files
	log       klog.Logger
	condition func(name condition.Name, message string) // nil where nobody asks for them
	// forwarding is condition for what forwarding depends on, nil for the same.
	forwarding func(f service.Family, name condition.Name, message string)
	reported   map[string]string // by setting
}

// run returns when ctx ends. It writes a setting that was right again only for another value: an
// operator may have changed it on purpose.
func (p *nodePreparer) run(ctx context.Context, with Preparation, families func() []service.Family) {
	applied, next := false, time.Now()
	for {
		if now := time.Now(); !applied && !now.Before(next) {
			applied, next = p.report(p.apply(with.Config())), now.Add(settingsRetry)
		}
		used := families()
		p.report(sysctl.Forwarding(p.files, used...))
		p.withdrawUnused(used)
		select {
		case <-ctx.Done():
			return
		case <-time.After(forwardingInterval):
		case <-with.Requests:
			p.withdrawAll()
			applied, next = false, time.Now()
		}
	}
}

func (p *nodePreparer) apply(c *config.Config) []sysctl.Outcome {
	return append(sysctl.Apply(p.files, Settings(c)), sysctl.OOMScore(p.files, int(*c.OOMScoreAdj)))
}

// report reports the outcomes, and returns whether all settings are as desired.
func (p *nodePreparer) report(all []sysctl.Outcome) bool {
	ok := true
	for _, o := range all {
		failed := o.Action == sysctl.Failed || o.Action == sysctl.Mismatch
		ok = ok && !failed
		p.reportSetting(o, failed)
	}
	return ok
}

// withdrawAll clears all conditions, as settings may no longer be configured.
func (p *nodePreparer) withdrawAll() {
	for name := range p.reported {
		p.setCondition(name, "", false)
	}
	p.reported = nil
}

// withdrawUnused clears conditions about forwarding of families that are not used any more.
func (p *nodePreparer) withdrawUnused(used []service.Family) {
	for _, f := range service.Families {
		if slices.Contains(used, f) {
			continue
		}
		for _, o := range sysctl.Forwarding(p.files, f) {
			if _, reported := p.reported[o.Name]; reported {
				p.setCondition(o.Name, "", false)
				delete(p.reported, o.Name)
			}
		}
	}
}

// setCondition shows or, if text is empty, clears a fault; stops is whether nothing is forwarded.
func (p *nodePreparer) setCondition(name, text string, stops bool) {
	condition := condition.Setting.Of(name)
	f, forwards := sysctl.IsForwarding(name)
	switch {
	case forwards && stops && p.forwarding != nil:
		p.forwarding(f, condition, text)
	case p.condition != nil:
		p.condition(condition, text)
	}
}

func (p *nodePreparer) reportSetting(o sysctl.Outcome, failed bool) {
	text := o.String()
	old, known := p.reported[o.Name]
	if p.reported == nil {
		p.reported = map[string]string{}
	}
	p.reported[o.Name] = text
	if known && text == old {
		return
	}
	if failed {
		p.setCondition(o.Name, text, o.Stops())
	} else {
		p.setCondition(o.Name, "", false)
	}
	switch {
	case failed:
		p.log.Info("Warning: system setting "+text, "setting", o.Name, "want", o.Want, "have", o.Have)
	case known || o.Action == sysctl.Written:
		p.log.Info("System setting: " + text)
	default:
		p.log.V(2).Info("System setting: " + text)
	}
}

// Settings returns the system settings that c asks for.
func Settings(c *config.Config) sysctl.Settings {
	k := &c.Conntrack
	return sysctl.Settings{
		MaxPerCore:     int(*k.MaxPerCore),
		CPUs:           runtime.NumCPU(),
		Min:            int(*k.Min),
		TCPEstablished: k.TCPEstablishedTimeout.Duration,
		TCPCloseWait:   k.TCPCloseWaitTimeout.Duration,
		TCPBeLiberal:   k.TCPBeLiberal,
		UDP:            k.UDPTimeout.Duration,
		UDPStream:      k.UDPStreamTimeout.Duration,
	}
}

// PendingSettings lists the system settings that Prepare would change, one a line.
func PendingSettings(c *config.Config) []string {
	return changes(sysctl.Apply(readOnlyFiles{sysctl.Host()}, Settings(c)))
}

// PendingScore does so for the process of the proxy, which Prepare does not set.
func PendingScore(c *config.Config) []string {
	return changes([]sysctl.Outcome{sysctl.OOMScore(readOnlyFiles{sysctl.Host()}, int(*c.OOMScoreAdj))})
}

// changes are the lines of what was written.
func changes(all []sysctl.Outcome) []string {
	var lines []string
	for _, o := range all {
		if o.Action == sysctl.Written {
			lines = append(lines, fmt.Sprintf("~ %s: %s -> %s", o.Name, o.Have, o.Want))
		}
	}
	return lines
}

// readOnlyFiles takes what is written, and writes nothing.
type readOnlyFiles struct{ sysctl.Files }

// WriteFile implements sysctl.Files.
func (readOnlyFiles) WriteFile(string, []byte) error { return nil }
