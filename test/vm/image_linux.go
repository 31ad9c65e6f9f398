// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// initScript is the machine's first program.
//
//go:embed init.sh
var initScript string

// programs are copied from this machine if they are installed. Those in needed must be.
var (
	needed   = []string{"bash", "busybox", "kmod", "ip", "nft", "ipset", "conntrack", "ipvsadm", "xtables-nft-multi", "xtables-legacy-multi", "setpriv"}
	optional = []string{"ss", "tc", "bridge", "sysctl", "ethtool", "tcpdump", "strace"}
)

// aliases are additional names of some programs.
func aliases() map[string]string {
	all := map[string]string{"/usr/bin/sh": "bash"}
	for _, name := range []string{"modprobe", "insmod", "rmmod", "lsmod", "depmod", "modinfo"} {
		all["/usr/sbin/"+name] = "../bin/kmod"
	}
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, does := range []string{"", "-save", "-restore"} {
			all["/usr/sbin/"+name+does] = "xtables-nft-multi"
			all["/usr/sbin/"+name+"-nft"+does] = "xtables-nft-multi"
			all["/usr/sbin/"+name+"-legacy"+does] = "xtables-legacy-multi"
		}
	}
	return all
}

// guestFiles are files that programs read.
var guestFiles = map[string]string{
	"/etc/passwd":      "root:x:0:0:root:/root:/bin/bash\n",
	"/etc/group":       "root:x:0:\n",
	"/etc/hosts":       "127.0.0.1 localhost\n::1 localhost\n",
	"/etc/hostname":    "vm\n",
	"/etc/resolv.conf": "",
}

// copiedFiles are files of this machine that programs read, if it has them.
var copiedFiles = []string{"/etc/protocols", "/etc/services", "/etc/ethertypes", "/etc/iproute2", "/usr/share/iproute2"}

// wantedModules matches the modules of the image: those for networks, and the drivers of
// the machine's devices. Their dependencies are added.
var wantedModules = regexp.MustCompile(`^kernel/(` + strings.Join([]string{
	"net/(netfilter|ipv4|ipv6|bridge|sctp|core|sched|xfrm|8021q|llc|802|netlink|unix|packet|key)/",
	"drivers/net/(dummy|veth|tun|ifb|nlmon|vrf|net_failover|virtio_net|vxlan|geneve|macvlan|ipvlan|netdevsim)",
	"drivers/virtio/", "drivers/block/virtio_blk", "drivers/char/(virtio_console|hw_random/)", "fs/overlayfs/", "crypto/.*crc32c", "crypto/crc", "lib/",
}, "|") + `)`)

// locate finds a program as root would.
func locate(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if found, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return filepath.EvalSymlinks(found)
		}
	}
	return "", fmt.Errorf("%w: %s", ErrMissing, name)
}

// base is the part of the image that all commands share.
func base(k kernel) (tree, error) {
	t := tree{}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run/lock", "/tmp", "/root", "/var/log", "/usr/local/bin"} {
		t[dir] = entry{dir: true}
	}
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		t["/"+name] = entry{link: "usr/" + name}
		t["/usr/"+name] = entry{dir: true}
	}
	t["/var/run"], t["/var/tmp"] = entry{link: "/run"}, entry{link: "/tmp"}
	t["/init"] = entry{text: initScript, exec: true}
	for name, text := range guestFiles {
		t[name] = entry{text: text}
	}
	for _, file := range copiedFiles {
		if err := t.add(file, file); err != nil && !os.IsNotExist(err) {
			return nil, err
		}
	}
	if err := t.addPrograms(); err != nil {
		return nil, err
	}
	return t, t.addModules(k)
}

func (t tree) addPrograms() error {
	for _, name := range slices.Concat(needed, optional) {
		file, err := locate(name)
		if err != nil && slices.Contains(optional, name) {
			continue
		}
		if err == nil {
			err = t.addProgram(file, file)
		}
		if err != nil {
			return err
		}
	}
	for name, to := range aliases() {
		t[name] = entry{link: to}
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err == nil && len(extensions) == 0 {
		err = fmt.Errorf("%w: the extensions of iptables", ErrMissing)
	}
	for _, file := range extensions {
		if err == nil {
			err = t.addProgram(file, file)
		}
	}
	if err != nil {
		return err
	}
	return t.addBusybox()
}

// addBusybox adds each busybox command for which there is no program of its own.
func (t tree) addBusybox() error {
	busybox, err := locate("busybox")
	if err != nil {
		return err
	}
	names, err := output(exec.Command(busybox, "--list"))
	for name := range strings.FieldsSeq(names) {
		if _, ok := t["/usr/sbin/"+name]; ok {
			continue
		}
		if _, ok := t["/usr/bin/"+name]; !ok {
			t["/usr/bin/"+name] = entry{link: "busybox"}
		}
	}
	return err
}

// library matches a path in the output of ldd(1).
var library = regexp.MustCompile(`/\S+`)

// addProgram adds a program and its shared libraries.
func (t tree) addProgram(from, to string) error {
	if err := t.add(from, to); err != nil {
		return err
	}
	text, err := exec.Command("ldd", from).Output()
	if err != nil {
		return nil // it needs none
	}
	for _, file := range library.FindAllString(string(text), -1) {
		if _, ok := t[guestPath(file)]; ok || strings.HasSuffix(file, ":") {
			continue
		}
		if err := t.add(file, file); err != nil {
			return err
		}
	}
	return nil
}

// addModules adds the modules of wantedModules and their dependencies.
func (t tree) addModules(k kernel) error {
	f, err := os.Open(filepath.Join(k.modules(), "modules.dep"))
	if err != nil {
		return err
	}
	defer f.Close()
	in := filepath.Join("/usr/lib/modules", k.release)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		// The files after the colon are all dependencies, including indirect ones, see
		// modules.dep(5).
		module, needs, ok := strings.Cut(lines.Text(), ":")
		if !ok || !wantedModules.MatchString(module) {
			continue
		}
		for _, name := range append(strings.Fields(needs), module) {
			t[filepath.Join(in, name)] = entry{from: filepath.Join(k.modules(), name)}
		}
	}
	lists, err := filepath.Glob(filepath.Join(k.modules(), "modules.*"))
	for _, file := range lists {
		t[filepath.Join(in, filepath.Base(file))] = entry{from: file}
	}
	return err
}

// key identifies the whole content of t: a changed program or script leads to another
// image.
func (t tree) key() (string, error) {
	h := sha256.New()
	for _, name := range t.sorted() {
		e := t[name]
		fmt.Fprintf(h, "%s %s %s %v %v ", name, e.text, e.link, e.exec, e.dir)
		if e.from == "" || e.dir {
			continue
		}
		info, err := os.Stat(e.from)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d %d\n", e.from, info.Size(), info.ModTime().UnixNano())
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:16], nil
}
