// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/mdlayher/genetlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/beside"
)

// Probe asks the kernel, in the network namespace of the calling thread,
// whether it can do what Backend needs for f. For a moment it makes a virtual
// server that nothing leads to, and an interface. The error is one sentence that says what is
// missing.
func Probe(f service.Family, o Options) error {
	if err := beside.Probe(f, o.rulesOptions()); err != nil {
		return fmt.Errorf("the rules beside IPVS: %w", err)
	}
	k := &kernel{family: f, options: o}
	if err := k.open(); err != nil {
		return fmt.Errorf("IPVS for %s: %w", f, err)
	}
	defer k.close()
	if err := k.probeScheduler(o.scheduler()); err != nil {
		return fmt.Errorf("IPVS for %s: %w", f, err)
	}
	if err := k.probeDevice(); err != nil {
		return fmt.Errorf("IPVS for %s: %w", f, err)
	}
	return nil
}

// probeDevice makes an interface like ours and removes it, unless ours is there.
func (k *kernel) probeDevice() error {
	if _, err := k.links.LinkByName(Device); err == nil {
		return nil
	}
	a := netlink.NewLinkAttrs()
	a.Name = probeDeviceName
	l := &netlink.Dummy{LinkAttrs: a}
	if err := k.links.LinkAdd(l); err != nil && !errors.Is(err, unix.EEXIST) { // a process that was killed left it
		return fmt.Errorf("make a dummy interface: %w", dummyError(err))
	}
	return k.links.LinkDel(l)
}

const probeDeviceName = "kube-ipvs-trial"

// dummyError says what is missing where the kernel makes no dummy interface.
func dummyError(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: the right CAP_NET_ADMIN is needed", err)
	}
	return fmt.Errorf("%w: a kernel with dummy interfaces is needed (module dummy)", err)
}

// genlFamilyID asks the kernel for the number that IPVS has in generic netlink. The
// function of vishvananda/netlink reads two bytes past its header (v1.3.1), which
// the race detector takes for a race with whoever owns them.
func genlFamilyID() (uint16, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	f, err := conn.GetFamily("IPVS")
	return f.ID, err
}

// ensureLoaded returns the number that IPVS has, once it is loaded.
func ensureLoaded() (uint16, error) {
	id, err := genlFamilyID()
	if errors.Is(err, unix.ENOENT) {
		// Whoever may load modules has the kernel do it when it is asked; some
		// need a command.
		_ = exec.Command("modprobe", "ip_vs").Run()
		id, err = genlFamilyID()
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, errors.New("the kernel has no IPVS (module ip_vs): it is not loaded, and cannot be")
	case err != nil:
		return 0, fmt.Errorf("ask the kernel for IPVS: %w", err)
	}
	return id, nil
}

// Installed reports that the kernel has IPVS.
func Installed() bool {
	_, err := ensureLoaded()
	return err == nil
}

// schedulers are those that a kernel may have.
var schedulers = []string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "fo", "ovf", "twos"}

// probeKey is where the kernel is asked for schedulers, at this port or one after it.
// Such addresses are for documentation, but somebody may have one nonetheless.
var probeKey = [...]key{
	service.IPv4: {netip.MustParseAddr("198.51.100.0"), 20000, service.TCP},
	service.IPv6: {netip.MustParseAddr("2001:db8::"), 20000, service.TCP},
}

const (
	maxScheduler = 15 // bytes of its name
	probePorts   = 16 // ports that may be others'
)

// probeScheduler makes a virtual server with a scheduler, and removes it.
func (k *kernel) probeScheduler(scheduler string) error {
	err := k.tryScheduler(scheduler)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: the right CAP_NET_ADMIN is needed, in a user namespace that may change IPVS, as the host's may", err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w: the kernel's IPVS is built without %s", err, k.family)
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
	// The kernel takes none for a virtual server that never chooses, and has no
	// good word for what is too long.
	if scheduler == "none" || len(scheduler) > maxScheduler {
		return unix.ENOENT
	}
	o := &op{verb: addServer, key: probeKey[k.family], server: server{scheduler: scheduler, flags: flagOwned}}
	for range probePorts {
		err := k.genl.do(o)
		if errors.Is(err, unix.EEXIST) {
			var there server
			if there, err = k.getServer(o.key); err == nil && !there.owned() {
				o.key.port++
				continue
			} else if err == nil { // a process that was killed left it
				err = k.genl.do(&op{verb: setServer, key: o.key, server: o.server})
			}
		}
		if err != nil {
			return err
		}
		return k.genl.do(&op{verb: delServer, key: o.key})
	}
	return fmt.Errorf("virtual servers of others are at %s and the %d ports after it", probeKey[k.family], probePorts-1)
}
