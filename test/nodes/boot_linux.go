// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The commands by which a machine starts: BootCommand enters its cgroups and its network,
// and starts initCommand in the other namespaces as process 1. A process sees the cgroup
// that it was in when it got its namespace as the root, so it has to enter that first, see
// cgroup_namespaces(7).
const (
	BootCommand = "machine-boot"
	initCommand = "machine-init"
)

// RunCommand runs BootCommand and what follows from it, and returns whether args are such
// a command. A program that starts machines calls it first in main.
func RunCommand(args []string) (handled bool, err error) {
	if len(args) != 2 {
		return false, nil
	}
	run := map[string]func(*Machine) error{BootCommand: enterMachine, initCommand: runMachine}[args[0]]
	if run == nil {
		return false, nil
	}
	text, err := os.ReadFile(args[1])
	m := &Machine{}
	if err == nil {
		err = json.Unmarshal(text, m)
	}
	if err != nil {
		return true, fmt.Errorf("read the machine's description: %w", err)
	}
	return true, run(m)
}

// listenerFile is the number of the file that a machine's listener is.
const listenerFile = 3

func enterMachine(m *Machine) error {
	if err := m.enterCgroups(); err != nil {
		return fmt.Errorf("enter cgroups: %w", err)
	}
	runtime.LockOSThread() // the process ends here
	ns, err := netns.GetFromName(m.namespace())
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", m.namespace(), err)
	}
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", m.namespace(), err)
	}
	log, err := os.OpenFile(m.Log("init"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", initCommand, m.path("machine.json"))
	cmd.Stdout, cmd.Stderr = log, log
	if m.Forward != "" {
		cmd.ExtraFiles = []*os.File{os.NewFile(listenerFile, "listener")}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
			unix.CLONE_NEWCGROUP,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start process 1: %w", err)
	}
	pid := []byte(strconv.Itoa(cmd.Process.Pid) + "\n")
	if err := os.WriteFile(m.path("pid"), pid, 0o644); err != nil {
		return errors.Join(err, cmd.Process.Kill())
	}
	return nil
}
