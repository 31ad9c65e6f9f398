// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// rootPrograms are Debian's programs in the images of the tests. busybox has the rest.
var rootPrograms = []string{
	"bash", "dash", "wget", "curl", "nc.openbsd", "ss", "ip", "dig", "iperf", "conntrack", "nft", "ipset",
	"xtables-nft-multi", "xtables-legacy-multi",
}

// rootTexts are files of the images. Users and groups are those that the tests ask for.
// GNU wget tries 20 times, and the tests expect one.
var rootTexts = map[string]string{
	"etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n",
	"etc/group":         "root:x:0:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
	"etc/wgetrc":        "tries = 1\n",
	"etc/nsswitch.conf": "hosts: files dns\n",
}

// rootLinks are further names of programs. Debian's busybox as a shell runs its own nc
// and wget before any program, so sh is dash. kube-proxy wants iptables by each name.
func rootLinks() map[string]string {
	links := map[string]string{
		"bin/sh": "/usr/bin/dash", "bin/bash": "/usr/bin/bash", "bin/nc": "/usr/bin/nc.openbsd", "usr/local/bin/iperf": "/usr/bin/iperf",
	}
	for _, family := range []string{"", "6"} {
		for _, what := range []string{"", "-restore", "-save"} {
			links["usr/sbin/ip"+family+"tables"+what] = "xtables-nft-multi"
			for _, kind := range []string{"nft", "legacy"} {
				links["usr/sbin/ip"+family+"tables-"+kind+what] = "xtables-" + kind + "-multi"
			}
		}
	}
	return links
}

// makeRoot makes the root that the images of the tests share, from programs of this
// machine.
func makeRoot(root string) error {
	for _, dir := range []string{"bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "root", "proc", "sys", "dev", "run", "var/run", "var/log", "uploads", "home", "usr/lib/x86_64-linux-gnu"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, dir), 0o777), os.Chmod(filepath.Join(root, dir), 0o777|fs.ModeSticky)); err != nil {
			return err
		}
	}
	for _, name := range rootPrograms {
		if err := copyProgram(root, name); err != nil {
			return err
		}
	}
	if err := copyModules(root); err != nil {
		return err
	}
	for to, from := range rootLinks() {
		if err := os.Symlink(from, filepath.Join(root, to)); err != nil {
			return err
		}
	}
	for name, text := range rootTexts {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755), os.WriteFile(filepath.Join(root, name), []byte(text), 0o644)); err != nil {
			return err
		}
	}
	for _, name := range []string{"/etc/protocols", "/etc/services", "/etc/ethertypes", "/etc/ssl/certs/ca-certificates.crt"} {
		if err := copyFile(name, filepath.Join(root, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return addBusybox(root)
}

// find returns where this machine has a program, also where only root looks.
func find(name string) (string, error) {
	for _, dir := range []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"} {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
	}
	return "", fmt.Errorf("no program %s; build/setup.sh cluster installs it", name)
}

// copyProgram copies a program and the libraries that it needs to where they are here.
func copyProgram(root, name string) error {
	file, err := find(name)
	if err != nil {
		return err
	}
	return copyWithLibraries(root, file, filepath.Join(root, "usr", filepath.Base(filepath.Dir(file)), name))
}

var libraryLine = regexp.MustCompile(`/\S+`)

func copyWithLibraries(root, file, to string) error {
	if err := copyFile(file, to); err != nil {
		return err
	}
	list, err := exec.Command("ldd", file).Output()
	if static := (*exec.ExitError)(nil); errors.As(err, &static) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the libraries of %s: %w", file, err)
	}
	for _, lib := range libraryLine.FindAllString(string(list), -1) {
		to := filepath.Join(root, lib)
		if _, err := os.Stat(to); err == nil {
			continue
		}
		if err := copyFile(lib, to); err != nil {
			return err
		}
	}
	return nil
}

// copyModules copies what iptables loads at run time, and the C library's ways to resolve
// names.
func copyModules(root string) error {
	for _, pattern := range []string{"/usr/lib/*-linux-gnu/xtables/*.so", "/lib/*-linux-gnu/libnss_files.so.2", "/lib/*-linux-gnu/libnss_dns.so.2"} {
		all, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, file := range all {
			if err := copyWithLibraries(root, file, filepath.Join(root, file)); err != nil {
				return err
			}
		}
	}
	return nil
}

// addBusybox gives the root every program of busybox that Debian's own do not cover.
func addBusybox(root string) error {
	file, err := find("busybox")
	if err != nil {
		return err
	}
	if err := copyFile(file, filepath.Join(root, "bin/busybox")); err != nil {
		return err
	}
	list, err := exec.Command(file, "--list").Output()
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(list)) {
		if anyHas(root, name) {
			continue
		}
		if err := os.Symlink("busybox", filepath.Join(root, "bin", name)); err != nil {
			return err
		}
	}
	return nil
}

func anyHas(root, name string) bool {
	for _, dir := range []string{"bin", "sbin", "usr/bin", "usr/sbin"} {
		if _, err := os.Lstat(filepath.Join(root, dir, name)); err == nil {
			return true
		}
	}
	return false
}

// copyFile copies a file, or what a link leads to, with its permissions.
func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if old, err := os.ReadFile(to); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return os.WriteFile(to, text, info.Mode().Perm())
}
