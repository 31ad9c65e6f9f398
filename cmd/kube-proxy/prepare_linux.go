// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/sysctl"
)

// prepare makes the settings of the system. The error names those that are not as
// wanted. Forwarding is others' to allow, often later, so it is only logged.
func prepare(ctx context.Context, c *config.Config) error {
	p := &preparation{files: sysctl.Host(), log: klog.FromContext(ctx)}
	for _, f := range service.Families {
		// This has the kernel load connection tracking, whose settings do not
		// exist before. What is wrong, the proxy itself will say.
		if err := nftables.Probe(f); err != nil {
			p.log.Info("Warning: the proxy could not program a family here", "family", f.String(), "err", err)
		}
	}
	// The score would be of this process, which ends.
	all := sysctl.Apply(p.files, sysctlSettings(c))
	p.look(append(slices.Clone(all), sysctl.Forwarding(p.files, service.Families[:]...)...))
	return unprepared(all)
}

// unprepared says in one line which settings are not as wanted.
func unprepared(all []sysctl.Outcome) error {
	var missing []string
	for _, o := range all {
		if o.Action == sysctl.Failed || o.Action == sysctl.Unmet {
			missing = append(missing, o.String())
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("prepare the node: %d of %d settings are not as wanted: %s; run --init-only as root on the node's network, in a container with privileged: true",
		len(missing), len(all), strings.Join(missing, "; "))
}

// keepPrepared does the same until all is well, and shows what is not as
// conditions.
func keepPrepared(ctx context.Context, f *effective, o *observers) {
	p := &preparation{files: sysctl.Host(), log: klog.FromContext(ctx), condition: o.health.SetCondition}
	if o.mode != "userspace" { // which relays connections itself
		p.forwarding = func(f service.Family, name, text string) { o.health.SetBlockingCondition(name, text, text, f) }
	}
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { watchHidden(ctx, o, sockets()) })
	p.keep(ctx, f, func() []service.Family { return usedFamilies(o.tracker.Latest()) })
}

// usedFamilies are those of which there are Services: the others need not be
// forwarded.
func usedFamilies(s *service.Snapshot) []service.Family {
	var used []service.Family
	for _, f := range service.Families {
		if s != nil && s.Len(f) > 0 {
			used = append(used, f)
		}
	}
	return used
}

// settingsPause is how long settings rest that could not be made, and
// forwardingPause those that are others' to make: these are read only, and asked of
// by whoever wonders where traffic is.
const (
	settingsPause   = time.Minute
	forwardingPause = 5 * time.Second
)

// tracked returns nil while the kernel tracks no connections.
func tracked() *metrics.Tracked {
	now, most, err := sysctl.Connections(sysctl.Host())
	if err != nil {
		return nil
	}
	return &metrics.Tracked{Entries: now, Limit: most}
}

// preparation tells of settings, each time that there is something new.
type preparation struct {
	files     sysctl.Files
	log       klog.Logger
	condition func(name, message string) // nil where nobody asks for them
	// forwarding is condition for what forwarding depends on, nil for the same.
	forwarding func(f service.Family, name, message string)
	told       map[string]string // by setting
}

// keep returns when ctx ends. It never writes again what was right once:
// somebody may have decided otherwise. Only settings that change are made anew.
func (p *preparation) keep(ctx context.Context, f *effective, families func() []service.Family) {
	made, next := false, time.Now()
	for {
		if now := time.Now(); !made && !now.Before(next) {
			made, next = p.look(p.set(f.config())), now.Add(settingsPause)
		}
		used := families()
		p.look(sysctl.Forwarding(p.files, used...))
		p.drop(used)
		select {
		case <-ctx.Done():
			return
		case <-time.After(forwardingPause):
		case <-f.prepare:
			p.forget()
			made, next = false, time.Now()
		}
	}
}

func (p *preparation) set(c *config.Config) []sysctl.Outcome {
	return append(sysctl.Apply(p.files, sysctlSettings(c)), sysctl.OOMScore(p.files, int(*c.OOMScoreAdj)))
}

// look reports whether all is well.
func (p *preparation) look(all []sysctl.Outcome) bool {
	well := true
	for _, o := range all {
		wrong := o.Action == sysctl.Failed || o.Action == sysctl.Unmet
		well = well && !wrong
		p.tell(o, wrong)
	}
	return well
}

// forget takes back what was told: some of it may not be asked for any more.
func (p *preparation) forget() {
	for name := range p.told {
		p.show(name, "")
	}
	p.told = nil
}

// drop takes back what was told about the forwarding of families that are not
// used any more.
func (p *preparation) drop(used []service.Family) {
	for _, f := range service.Families {
		if slices.Contains(used, f) {
			continue
		}
		for _, o := range sysctl.Forwarding(p.files, f) {
			if _, told := p.told[o.Name]; told {
				p.show(o.Name, "")
				delete(p.told, o.Name)
			}
		}
	}
}

// show shows what is wrong with a setting, nothing if text is empty.
func (p *preparation) show(name, text string) {
	condition := "setting-" + strings.ReplaceAll(name, " ", "-")
	f, forwards := sysctl.Forwards(name)
	switch {
	case forwards && p.forwarding != nil:
		p.forwarding(f, condition, text)
	case p.condition != nil:
		p.condition(condition, text)
	}
}

func (p *preparation) tell(o sysctl.Outcome, wrong bool) {
	text := o.String()
	old, again := p.told[o.Name]
	if p.told == nil {
		p.told = map[string]string{}
	}
	p.told[o.Name] = text
	if again && text == old {
		return
	}
	if wrong {
		p.show(o.Name, text)
	} else {
		p.show(o.Name, "")
	}
	switch {
	case wrong:
		p.log.Info("Warning: system setting "+text, "setting", o.Name, "want", o.Want, "have", o.Have)
	case again || o.Action == sysctl.Written:
		p.log.Info("System setting: " + text)
	default:
		p.log.V(2).Info("System setting: " + text)
	}
}

func sysctlSettings(c *config.Config) sysctl.Settings {
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
