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
	"kubeproxy/platform/linux/ipvs/companion"
)

// Probe checks, in the network namespace of the calling thread, whether the kernel can
// do what Backend needs for f. For a moment it makes a virtual server that no packet
// reaches, and an interface. The error is one sentence that describes what is missing.
func Probe(f service.Family, o Options) error {
	if err := companion.Probe(f, o.rulesOptions()); err != nil {
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

// probeDevice makes an interface like ours and removes it, unless ours exists.
func (k *kernel) probeDevice() error {
	if _, err := k.links.LinkByName(Device); err == nil {
		return nil
	}
	a := netlink.NewLinkAttrs()
	a.Name = probeDeviceName
	l := &netlink.Dummy{LinkAttrs: a}
	if err := k.links.LinkAdd(l); err != nil && !errors.Is(err, unix.EEXIST) { // left by a process that was killed
		return fmt.Errorf("make a dummy interface: %w", dummyError(err))
	}
	return k.links.LinkDel(l)
}

const probeDeviceName = "kube-ipvs-trial"

// dummyError describes what is missing if the kernel makes no dummy interface.
func dummyError(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: the right CAP_NET_ADMIN is needed", err)
	}
	return fmt.Errorf("%w: a kernel with dummy interfaces is needed (module dummy)", err)
}

// genlFamilyID returns the family ID of IPVS in generic netlink. It does not use the
// function of vishvananda/netlink (v1.3.1), which reads two bytes past its header: the
// race detector reports that as a race.
func genlFamilyID() (uint16, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	f, err := conn.GetFamily("IPVS")
	return f.ID, err
}

// ensureLoaded loads IPVS if necessary, and returns its family ID.
func ensureLoaded() (uint16, error) {
	id, err := genlFamilyID()
	if errors.Is(err, unix.ENOENT) {
		// With the right capability, the kernel loads the module on request. Some
		// kernels need the command.
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

// Installed reports whether the kernel has IPVS, loading it if necessary.
func Installed() bool {
	_, err := ensureLoaded()
	return err == nil
}

// schedulers are those that a kernel may have, see ipvsadm(8).
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

// probeScheduler makes a virtual server with a scheduler, and deletes it.
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
	// With "none" the kernel makes a virtual server without scheduler. For a name that
	// is too long its error is misleading.
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
			} else if err == nil { // left by a process that was killed
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
