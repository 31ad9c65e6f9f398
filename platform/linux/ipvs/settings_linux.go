// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// setting is a sysctl (docs.kernel.org/networking/ipvs-sysctl.html).
type setting struct {
	file, value string
	// needed describes what fails otherwise. It is empty if the setting is optional.
	needed string
}

// settings lists the settings that virtual servers need.
func (o Options) settings(of settingsScope) []setting {
	all := []setting{
		{"net/ipv4/vs/conntrack", "1", "nothing can be masqueraded"},
		// Clients of a removed endpoint move to another one.
		{"net/ipv4/vs/expire_nodest_conn", "1", ""},
		{"net/ipv4/vs/expire_quiescent_template", "1", ""},
	}
	if o.StrictARP && of == scopeStartup {
		all = append(all, setting{"net/ipv4/conf/all/arp_ignore", "1", ""}, setting{"net/ipv4/conf/all/arp_announce", "2", ""})
	}
	return all
}

// MissingSettings implements Driver.
func (k *kernel) MissingSettings(_ context.Context, of settingsScope) ([]string, error) {
	var missing []string
	for _, s := range k.options.settings(of) {
		if have, err := s.current(); (err != nil || have != s.value) && !k.refused[s.file] {
			missing = append(missing, s.name()+" = "+s.value)
		}
	}
	if !k.options.hasTimeouts() {
		return missing, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := callClient(k, client.getTimeouts)
	if err != nil {
		return nil, err
	}
	for _, t := range []struct {
		name       string
		want, have time.Duration
	}{
		{"TCP", k.options.TCP, c.tcp}, {"TCP after FIN", k.options.TCPFin, c.tcpFin}, {"UDP", k.options.UDP, c.udp},
	} {
		if t.want > 0 && ceilSeconds(t.want) != t.have {
			missing = append(missing, fmt.Sprintf("timeout of %s = %s", t.name, t.want))
		}
	}
	return missing, nil
}

// hasTimeouts reports whether o has timeouts to set.
func (o Options) hasTimeouts() bool { return o.TCP > 0 || o.TCPFin > 0 || o.UDP > 0 }

// ApplySettings implements Driver.
func (k *kernel) ApplySettings(ctx context.Context, of settingsScope) error {
	log := klog.FromContext(ctx)
	for _, s := range k.options.settings(of) {
		if k.refused[s.file] {
			continue
		}
		err := s.set(log)
		switch {
		case err != nil && s.needed != "":
			return fmt.Errorf("%w: without it %s", err, s.needed)
		case err != nil:
			log.Info("Warning: a system setting that IPVS should have cannot be made", "setting", s.file, "want", s.value, "err", err.Error())
			if k.refused == nil {
				k.refused = map[string]bool{}
			}
			k.refused[s.file] = true
		}
	}
	o := k.options
	if !o.hasTimeouts() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := callClient(k, func(a client) (struct{}, error) {
		return struct{}{}, a.setTimeouts(timeouts{ceilSeconds(o.TCP), ceilSeconds(o.TCPFin), ceilSeconds(o.UDP)})
	})
	if err != nil {
		return fmt.Errorf("set the timeouts of IPVS: %w", err)
	}
	return nil
}

// Prepare makes the settings that virtual servers need. In a container that is not
// privileged they cannot be made, because /proc/sys is read-only there. They exist once the
// module is loaded, and belong to the network namespace.
func Prepare(ctx context.Context, o Options) error {
	if _, err := ensureLoaded(); err != nil {
		return err
	}
	log := klog.FromContext(ctx)
	var errs []error
	for _, s := range o.settings(scopeStartup) {
		if err := s.set(log); err != nil {
			errs = append(errs, fmt.Errorf("prepare the node for IPVS: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Pending lists what Prepare would change, one a line. It changes nothing, and loads no
// module.
func Pending(o Options) ([]string, error) {
	var lines []string
	for _, s := range o.settings(scopeStartup) {
		have, err := s.current()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			have = "absent until module ip_vs is loaded"
		case err != nil:
			return nil, fmt.Errorf("read the settings of IPVS: %w", err)
		case have == s.value:
			continue
		}
		lines = append(lines, fmt.Sprintf("~ %s: %s -> %s", s.name(), have, s.value))
	}
	return lines, nil
}

// ceilSeconds rounds d up to seconds, the unit of the kernel.
func ceilSeconds(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

func (s setting) path() string { return "/proc/sys/" + s.file }

func (s setting) name() string { return strings.ReplaceAll(s.file, "/", ".") }

func (s setting) current() (string, error) {
	text, err := os.ReadFile(s.path())
	return strings.TrimSpace(string(text)), err
}

// set writes the value if the present one differs.
func (s setting) set(log klog.Logger) error {
	have, err := s.current()
	if err != nil || have == s.value {
		return err
	}
	if err := os.WriteFile(s.path(), []byte(s.value+"\n"), 0o644); err != nil {
		return err
	}
	log.Info("System setting made for IPVS", "setting", s.file, "was", have, "now", s.value)
	return nil
}
