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

// ErrNotAllowed means that this process may not create network namespaces.
var ErrNotAllowed = errors.New("making network namespaces needs root, or a system that lets users make namespaces " +
	"(sysctls user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)")

// reexecVariable marks a program that Enter has started again.
const reexecVariable = "NETLAB_INSIDE"

// Enter makes sure that this process may create network namespaces. Root may. For another
// user, it starts the program again, with the same arguments, as root of a user
// namespace, see user_namespaces(7). Enter does not return in that case: the process
// exits with the exit code of the second one. Call it first in main.
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

// Main is Enter for a TestMain: it runs the tests, in a user namespace if necessary, and
// returns the exit code. If namespaces are not allowed, the tests run all the same and
// Start skips the live ones.
func Main(run func() int) int {
	if err := Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return run()
}

// Allowed returns nil if this process may create network namespaces, else ErrNotAllowed.
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

// reexec runs this program in a new user namespace and returns its exit code. The child
// dies with the parent; interrupts from the terminal reach both.
func reexec() (int, error) {
	// The path of the program may be inaccessible for this user.
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
	// A handler, as the child would inherit an ignored signal, see signal(7).
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)
	result := make(chan error)
	go onThread(func() bool { // stays until the child has ended, see Host.worker
		err := cmd.Start()
		if err != nil {
			err = fmt.Errorf("%w: %w", ErrNotAllowed, err)
		} else if err = cmd.Wait(); errors.As(err, new(*exec.ExitError)) {
			err = nil // the exit code is the result
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
