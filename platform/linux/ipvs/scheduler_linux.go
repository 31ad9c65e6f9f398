// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// schedulers are those that a kernel may have (kernel: net/netfilter/ipvs/Kconfig).
var schedulers = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "fo", "ovf", "twos"}

// probeKey is where schedulers are tried, at this port or a following one. The addresses
// are reserved for documentation, but a foreign server may exist there nonetheless.
var probeKey = [...]key{
	service.IPv4: {netip.MustParseAddr("198.51.100.0"), 20000, service.TCP},
	service.IPv6: {netip.MustParseAddr("2001:db8::"), 20000, service.TCP},
}

const (
	maxScheduler = 15 // bytes of its name
	probePorts   = 16 // number of ports to try
)

// perNamespace has the schedulers whose modules keep something in each network namespace,
// and the setting that exists once the module is loaded. Such a module must not be loaded
// by the kernel itself, when a virtual server wants it: the kernel does so with the lock
// of IPVS held, and the module waits for network namespaces that are being removed, which
// wait for that lock. Then no namespace of the node can be made or removed any more. See
// ip_vs_service_nets_cleanup in https://elixir.bootlin.com/linux/v6.1/source/net/netfilter/ipvs/ip_vs_ctl.c
// and ip_vs_lblc_init in https://elixir.bootlin.com/linux/v6.1/source/net/netfilter/ipvs/ip_vs_lblc.c
// A kernel with https://git.kernel.org/torvalds/c/74455a5b4326 has a lock for each namespace.
var perNamespace = map[string]string{"lblc": "lblc_expiration", "lblcr": "lblcr_expiration"}

// errNotLoaded is the answer for a scheduler that the kernel must not load itself.
var errNotLoaded = errors.New("the module is not loaded, and the node may hang if the kernel loads it on demand")

// loadScheduler loads the module of a scheduler without the lock of IPVS, if it has to.
func loadScheduler(scheduler string) error {
	setting, ok := perNamespace[scheduler]
	if !ok || schedulerLoaded(scheduler, setting) {
		return nil
	}
	module := "ip_vs_" + scheduler
	if err := exec.Command("modprobe", module).Run(); err != nil {
		return fmt.Errorf("%w: run modprobe %s on the node, at each boot", errNotLoaded, module)
	}
	return nil
}

// schedulerLoaded is true for modules that are built into the kernel, too: these have the
// setting. A network namespace that belongs to another user namespace lacks it.
func schedulerLoaded(scheduler, setting string) bool {
	for _, path := range []string{"/proc/sys/net/ipv4/vs/" + setting, "/sys/module/ip_vs_" + scheduler} {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}

// probeScheduler makes a virtual server with a scheduler, and deletes it.
func (k *kernel) probeScheduler(scheduler string) error {
	err := k.tryScheduler(scheduler)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: the right CAP_NET_ADMIN is needed, in a user namespace that may change IPVS, as the host's may", err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w: the kernel's IPVS is built without %s", err, k.family)
	case errors.Is(err, errNotLoaded):
		return fmt.Errorf("scheduler %q: %w", scheduler, err)
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	var has []string
	for _, s := range schedulers {
		if s != scheduler && k.tryScheduler(s) == nil {
			has = append(has, s)
		}
	}
	return fmt.Errorf("the kernel has no scheduler %q (module ip_vs_%s): it has %s", scheduler, scheduler, strings.Join(slices.Sorted(slices.Values(has)), ", "))
}

func (k *kernel) tryScheduler(scheduler string) error {
	// With "none" the kernel makes a virtual server without scheduler (kernel:
	// net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_add_service). For a name that is too long its
	// error is misleading.
	if scheduler == "none" || len(scheduler) > maxScheduler {
		return unix.ENOENT
	}
	if err := loadScheduler(scheduler); err != nil {
		return err
	}
	o := &op{verb: addServer, key: probeKey[k.family], server: server{scheduler: scheduler, flags: flagOwned}}
	for range probePorts {
		err := k.requests.do(o)
		if errors.Is(err, unix.EEXIST) {
			var there server
			if there, err = k.getServer(o.key); err == nil && !there.owned() {
				o.key.port++
				continue
			} else if err == nil { // left by a process that was killed
				err = k.requests.do(&op{verb: setServer, key: o.key, server: o.server})
			}
		}
		if err != nil {
			return err
		}
		return k.requests.do(&op{verb: delServer, key: o.key})
	}
	return fmt.Errorf("virtual servers of others are at %s and the %d ports after it", probeKey[k.family], probePorts-1)
}
