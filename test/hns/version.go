// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"fmt"
	"strconv"
	"strings"
)

// Version is the version of HNS, not that of Windows.
type Version struct{ Major, Minor int }

// Versions returns the versions in the field: Windows Server 2019, 2022 and 2025. Of 2025
// there are two, the first of which accepts changes of a load balancer and ignores them.
func Versions() []Version { return []Version{{9, 5}, {13, 3}, {15, 4}, {15, 5}} }

// ParseVersion parses the format of String: "13.3".
func ParseVersion(text string) (Version, error) {
	major, minor, ok := strings.Cut(text, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	if !ok || errA != nil || errB != nil {
		return Version{}, fmt.Errorf("HNS version %q: want two numbers, such as 13.3", text)
	}
	return Version{a, b}, nil
}

// String is two numbers: "13.3".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

func (v Version) atLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// The features of each version. hcsshim reads the version and concludes the same, see
// hcn/hcnglobals.go of microsoft/hcsshim. Remote subnets came with 9.2, before every
// version that is simulated.

func (v Version) dsr() bool       { return v.Major == 9 && v.Minor >= 3 || v.atLeast(10, 2) }
func (v Version) dualStack() bool { return v.atLeast(11, 10) }
func (v Version) affinity() bool  { return v.atLeast(12, 0) }

// modify is whether a change of a load balancer is accepted, and works whether it has any
// effect.
func (v Version) modify() bool { return v.atLeast(15, 4) }
func (v Version) works() bool  { return v.atLeast(15, 5) }

// server2019 is whether the version has the quirks that were not observed in later ones.
func (v Version) server2019() bool { return v.Major < 10 }
