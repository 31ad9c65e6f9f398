// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm runs one command in a virtual machine with a Debian kernel, for tests of
// features that this machine's kernel lacks. Input is a Job, output its exit code, its
// output and files. It needs QEMU and no privileges: the processor is emulated, the
// kernel is downloaded but not installed, and the other programs are copies of this
// machine's. No file system is shared: the command's files go in with the machine's
// image, and its results come back when it has ended. The caller decides what the command
// tests.
package vm
