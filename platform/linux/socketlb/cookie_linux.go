// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// netnsCookie returns this thread's network namespace as programs see it. Before Linux 5.14 with
// SO_NETNS_COOKIE only they can ask, see https://git.kernel.org/linus/f318903c0bf4.
func netnsCookie() (uint64, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("open a socket: %w", err)
	}
	defer unix.Close(s)
	cookie, err := unix.GetsockoptUint64(s, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if errors.Is(err, unix.ENOPROTOOPT) {
		cookie, err = askProgram(s)
	}
	if err != nil {
		return 0, fmt.Errorf("ask for the cookie of the network namespace: %w", err)
	}
	return cookie, nil
}

// askProgram lets a program, for a moment at the root of all cgroups, read the namespace of a UDP
// socket that connects to an address nobody else can know. It lets all others pass.
func askProgram(socket int) (uint64, error) {
	root, err := UnifiedRoot()
	if err != nil {
		return 0, err
	}
	if err := allowMaps(); err != nil {
		return 0, err
	}
	answer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return 0, fmt.Errorf("make a map: %w", err)
	}
	defer answer.Close()
	var nonce [8]byte
	rand.Read(nonce[:])
	to := unix.SockaddrInet4{Addr: [4]byte{127, nonce[0], nonce[1], nonce[2]}, Port: 1 + int(binary.BigEndian.Uint16(nonce[3:]))%65535}
	l, err := attachQuestion(root, to, answer)
	if err != nil {
		return 0, err
	}
	defer l.Close()
	var cookie uint64
	if err := unix.Connect(socket, &to); !errors.Is(err, unix.EPERM) {
		return 0, fmt.Errorf("the program saw nothing: the cgroup of this process is not below %s (%v)", root, err)
	}
	return cookie, answer.Lookup(uint32(0), &cookie)
}

// questionName is what bpftool-prog(8) says of the program of askProgram.
const questionName = "ask_netns"

// attachQuestion attaches the program of askProgram to a cgroup.
func attachQuestion(cgroup string, to unix.SockaddrInet4, answer *ebpf.Map) (*link.RawLink, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: questionName, Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "Apache-2.0",
		Instructions: answerTo(to, answer.FD()),
	})
	if err != nil {
		return nil, fmt.Errorf("load a program: %w", err)
	}
	defer p.Close()
	dir, err := os.Open(cgroup)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	l, err := link.AttachRawLink(link.RawLinkOptions{Target: int(dir.Fd()), Program: p, Attach: ebpf.AttachCGroupInet4Connect})
	if err != nil {
		return nil, fmt.Errorf("attach a program to cgroup %s: %w", cgroup, err)
	}
	return l, nil
}

// Offsets in struct bpf_sock_addr of linux/bpf.h.
const (
	offsetIP4      = 4
	offsetPort     = 24
	offsetProtocol = 36
)

// answerTo returns a program that writes the cookie of the network namespace into a map, and
// refuses the connection, if it is one over UDP to this address.
func answerTo(to unix.SockaddrInet4, answer int) asm.Instructions {
	port := binary.BigEndian.AppendUint16(nil, uint16(to.Port))
	return asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, offsetProtocol, asm.Word),
		asm.JNE.Imm32(asm.R2, unix.IPPROTO_UDP, "pass"),
		asm.LoadMem(asm.R2, asm.R1, offsetIP4, asm.Word),
		asm.JNE.Imm32(asm.R2, int32(binary.NativeEndian.Uint32(to.Addr[:])), "pass"),
		asm.LoadMem(asm.R2, asm.R1, offsetPort, asm.Word),
		asm.JNE.Imm32(asm.R2, int32(binary.NativeEndian.Uint16(port)), "pass"),
		asm.FnGetNetnsCookie.Call(),
		asm.LoadMapValue(asm.R1, answer, 0),
		asm.StoreMem(asm.R1, 0, asm.R0, asm.DWord),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
		asm.Return(),
	}
}
