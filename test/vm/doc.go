// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm runs one command in a virtual machine with a kernel of Debian's,
// for tests of what the kernel of this machine lacks. It needs QEMU and no
// rights: the processor is emulated, the kernel is downloaded and not
// installed, and the programs around it are those of this machine, copied. No
// file system is shared: what the command needs goes in with the machine's
// image, what it leaves behind comes back when it has ended. What the command
// tests is left to those who run it.
package vm
