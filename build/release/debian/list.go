// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	_ "embed" // the list
	"fmt"
	"strings"
)

// Release is the release of Debian that the packages are from.
const Release = "bookworm"

// Licenses are those of what images have of the packages, an expression of
// https://spdx.org/licenses/ The texts are in usr/share/doc of the images.
const Licenses = "GPL-2.0-only AND GPL-2.0-or-later AND LGPL-2.1-or-later"

//go:embed packages.txt
var packages string

// Package is a package at one version.
type Package struct {
	Name, Arch, Version, SHA256 string
}

// String returns what a message calls the package.
func (p Package) String() string { return p.Name + " " + p.Version + " for " + p.Arch }

// List returns the packages for an architecture.
func List(arch string) ([]Package, error) { return parse(packages, arch) }

func parse(text, arch string) ([]Package, error) {
	var list []Package
	n := 0
	for line := range strings.Lines(text) {
		n++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 4 || len(fields[3]) != 64 {
			return nil, fmt.Errorf("packages.txt:%d: want a name, an architecture, a version and a SHA-256", n)
		}
		if fields[1] == arch {
			list = append(list, Package{fields[0], fields[1], fields[2], fields[3]})
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("packages.txt has no package for %s", arch)
	}
	return list, nil
}

// names are the packages that images have. Others that these depend on are left out, as
// nothing in an image loads their files; a test follows what the programs load.
var names = []string{
	"base-files", // os-release, by which scanners know the release
	"ipset",
	"iptables",
	"libc6",
	"libip4tc2",
	"libip6tc2",
	"libipset13",
	"libmnl0",
	"libnetfilter-conntrack3",
	"libnfnetlink0",
	"libnftnl11",
	"libxtables12",
	"netbase", // names of protocols
}
