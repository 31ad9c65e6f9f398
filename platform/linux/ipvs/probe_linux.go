// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"os/exec"

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
		return fmt.Errorf("the rules of mode ipvs: %w", err)
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
