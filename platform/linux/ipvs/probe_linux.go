// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipvs/companion"
	kernelnetlink "kubeproxy/platform/linux/netlink"
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

// genlFamilyID returns the number of IPVS in generic netlink.
func genlFamilyID() (id uint16, err error) {
	s, err := kernelnetlink.Dial(unix.NETLINK_GENERIC, kernelnetlink.Options{Timeout: receiveTimeout})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	var request kernelnetlink.Encoder
	request.GenericMessage(unix.GENL_ID_CTRL, 0, unix.CTRL_CMD_GETFAMILY)
	request.Text(unix.CTRL_ATTR_FAMILY_NAME, "IPVS")
	request.EndMessage()
	err = s.Query(context.Background(), request.Buf, func(m kernelnetlink.Message) error {
		id = kernelnetlink.Native16(kernelnetlink.Attribute(m.Generic(), unix.CTRL_ATTR_FAMILY_ID))
		return nil
	})
	return id, err
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
