// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/moby/ipvs"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// TestKernelSettings checks that the kernel gets the configured timeouts, and that
// others keep the value that another process set. The same holds for ARP.
func TestKernelSettings(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4, alwaysResync())
		h := newMobyHandle(t)
		kit.Must(t, h.SetConfig(&ipvs.Config{TimeoutTCP: 700 * time.Second, TimeoutTCPFin: 33 * time.Second, TimeoutUDP: 44 * time.Second}))
		apply(t, b, snapshot())
		wantTimeouts(t, h, ipvs.Config{TimeoutTCP: 700 * time.Second, TimeoutTCPFin: 33 * time.Second, TimeoutUDP: 44 * time.Second})
		wantARP(t, "0", "0")
		_ = b.Close()

		o := alwaysResync()
		o.TCP, o.UDP, o.StrictARP = 100*time.Second, 1500*time.Millisecond, true
		b = newKernel(t, service.IPv4, o)
		p := planOf(t, b, snapshot())
		for _, want := range []string{
			"+ setting timeout of TCP = 1m40s", "+ setting timeout of UDP = 1.5s",
			"+ setting net.ipv4.conf.all.arp_ignore = 1", "+ setting net.ipv4.conf.all.arp_announce = 2",
		} {
			if !slices.Contains(lines(p), want) {
				t.Errorf("the plan has no %q:\n%s", want, p.Changes())
			}
		}
		kit.Must(t, p.Apply(t.Context()).Err)
		wantTimeouts(t, h, ipvs.Config{TimeoutTCP: 100 * time.Second, TimeoutTCPFin: 33 * time.Second, TimeoutUDP: 2 * time.Second})
		wantARP(t, "1", "2")
		wantAllSettings(t, b)
		_ = b.Close()
	})
}

// TestKernelIsPrepared checks that a proxy which can make no settings finds them as it needs
// them.
func TestKernelIsPrepared(t *testing.T) {
	inNamespace(t, func() {
		o := alwaysResync()
		o.StrictARP = true
		kit.Must(t, Prepare(t.Context(), o))
		wantARP(t, "1", "2")
		b := newKernel(t, service.IPv4, o)
		wantAllSettings(t, b)
		_ = b.Close()
	})
}

// TestKernelKeepsSettings checks that foreign changes of IPVS settings are found,
// reported and undone. A foreign change of the ARP settings stays.
func TestKernelKeepsSettings(t *testing.T) {
	inNamespace(t, func() {
		o := alwaysResync()
		o.TCP, o.StrictARP = 100*time.Second, true
		b := newKernel(t, service.IPv6, o)
		h := newMobyHandle(t)
		apply(t, b, snapshot())
		for _, s := range o.settings(scopeStartup) {
			kit.Must(t, os.WriteFile(s.path(), []byte("0"), 0o644))
		}
		kit.Must(t, h.SetConfig(&ipvs.Config{TimeoutTCP: 5 * time.Second}))
		p := planOf(t, b, snapshot())
		want := []string{
			"altered: setting net.ipv4.vs.conntrack = 1", "altered: setting net.ipv4.vs.expire_nodest_conn = 1",
			"altered: setting net.ipv4.vs.expire_quiescent_template = 1", "altered: setting timeout of TCP = 1m40s",
		}
		if drift := p.Outcome().Drift; !slices.Equal(drift, want) {
			t.Errorf("the drift is %q, want %q", drift, want)
		}
		kit.Must(t, p.Apply(t.Context()).Err)
		if all, err := b.driver.MissingSettings(t.Context(), scopeRunning); len(all) > 0 || err != nil {
			t.Errorf("settings are lacking: %q, %v", all, err)
		}
		wantARP(t, "0", "0")
		if p := planOf(t, b, snapshot()); !p.Empty() || len(p.Outcome().Drift) > 0 {
			t.Errorf("and then there is more to do, %q:\n%s", p.Outcome().Drift, p.Changes())
		}
		_ = b.Close()
	})
}

// TestRefusedSetting checks that a setting that cannot be set is reported once.
func TestRefusedSetting(t *testing.T) {
	k := &kernel{refused: map[string]bool{}}
	for _, s := range k.options.settings(scopeRunning) {
		k.refused[s.file] = true
	}
	if all, err := k.MissingSettings(t.Context(), scopeRunning); len(all) > 0 || err != nil {
		t.Errorf("settings are lacking: %q, %v", all, err)
	}
	if err := k.ApplySettings(t.Context(), scopeRunning); err != nil {
		t.Error(err)
	}
}

func wantTimeouts(t *testing.T, h *ipvs.Handle, want ipvs.Config) {
	t.Helper()
	c, err := h.GetConfig()
	kit.Must(t, err)
	if *c != want {
		t.Errorf("the kernel's timeouts are %+v, want %+v", *c, want)
	}
}

func wantARP(t *testing.T, ignore, announce string) {
	t.Helper()
	for file, want := range map[string]string{"net/ipv4/conf/all/arp_ignore": ignore, "net/ipv4/conf/all/arp_announce": announce} {
		if have, err := (setting{file: file}).current(); err != nil || have != want {
			t.Errorf("%s is %s, %v, want %s", file, have, err, want)
		}
	}
}

// wantAllSettings checks that all settings are in place.
func wantAllSettings(t *testing.T, b *Backend) {
	t.Helper()
	if all, err := b.driver.MissingSettings(t.Context(), scopeStartup); len(all) > 0 || err != nil {
		t.Errorf("settings are lacking: %q, %v", all, err)
	}
}
