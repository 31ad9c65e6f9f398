// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNotAllowed means that this process may not make network namespaces.
var ErrNotAllowed = errors.New("making network namespaces needs root, or a system that lets users make namespaces " +
	"(sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)")

// reexecVariable marks a program that Enter has started again.
const reexecVariable = "NETLAB_INSIDE"

// Enter makes sure that this process may make network namespaces. Root may;
// anybody else's program is started again, with the same arguments, in a user
// namespace of which it is root. In that case Enter does not return: the
// process ends as its second self did. Call it first thing in main.
func Enter() error {
	err := Allowed()
	if err == nil || os.Getenv(reexecVariable) != "" {
		return err
	}
	code, err := reexec()
	if err != nil {
		return err
	}
	os.Exit(code)
	return nil
}

// Main is Enter for a TestMain: it runs the tests, in a user namespace if
// need be, and returns the exit code. Where no namespaces are allowed the
// tests run all the same and Start skips the live ones.
func Main(run func() int) int {
	if err := Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return run()
}

// Allowed tells whether this process may make network namespaces: nil or
// ErrNotAllowed.
func Allowed() error {
	result := make(chan error)
	go onThread(func() bool {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if errors.Is(err, unix.EPERM) {
			err = ErrNotAllowed
		}
		result <- err
		return err != nil
	})
	return <-result
}

// reexec runs this program in a new user namespace and returns its exit code.
// The parent's own death takes the child with it; the terminal's interrupts
// reach both.
func reexec() (int, error) {
	// By its path the program may be out of reach for this user.
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), reexecVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	// Not ignored, which the child would inherit.
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	result := make(chan error)
	go onThread(func() bool { // stays until the child has ended, see Host.worker
		err := cmd.Start()
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrNotAllowed, err)
		} else if err = cmd.Wait(); errors.As(err, new(*exec.ExitError)) {
			err = nil // the exit code tells
		}
		result <- err
		return true
	})
	if err := <-result; err != nil {
		return 0, err
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}
