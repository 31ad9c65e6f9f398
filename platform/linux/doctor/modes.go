// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
)

// Mode is a mode to check for.
type Mode struct {
	Name string
	// Primary is the family without which the mode does not start.
	Primary service.Family
	// Optional is whether the proxy works without the mode.
	Optional bool
	// Probe says in one sentence what the node lacks for a family. It changes nothing.
	Probe func(service.Family) error
}

// modeCheck returns the Check whether the node has what the mode needs.
func (n *Node) modeCheck(m Mode) doctor.Check {
	return doctor.Check{Name: "mode " + m.Name, Look: func(context.Context) (doctor.Seen, error) {
		families, err := n.families()
		if err != nil {
			return doctor.Seen{}, err
		}
		families = slices.DeleteFunc(families, func(f service.Family) bool { return f == m.Primary })
		families = slices.Insert(families, 0, m.Primary)
		seen := doctor.Seen{Note: "kernel and commands for " + familyNames(families)}
		for _, f := range families {
			err := m.Probe(f)
			if errors.Is(err, fs.ErrPermission) {
				return seen, fmt.Errorf("%w; run this as root, or with the rights of the proxy", err)
			}
			if err != nil {
				seen.Findings = append(seen.Findings, m.finding(f, err))
			}
			if err != nil && f == m.Primary {
				break // no other family works without it
			}
		}
		return seen, nil
	}}
}

func (m Mode) finding(f service.Family, err error) doctor.Finding {
	found := doctor.Finding{Topic: doctor.ModeUnavailable, Subject: f.String(), Mode: m.Name, What: err.Error(), Severity: doctor.Risk,
		Advice: "the mode goes on without the family"}
	if f == m.Primary {
		found.Severity, found.Advice = doctor.Blocks, "or set another --proxy-mode; kube-proxy doctor --all-modes shows which works"
	}
	if m.Optional {
		found.Severity, found.Advice = doctor.Risk, "nothing to do as long as the node uses another mode"
	}
	if all := modules(err.Error()); len(all) > 0 {
		found.Fix = "modprobe -a " + strings.Join(all, " ")
	} else if errors.Is(err, exec.ErrNotFound) {
		found.Advice = "install iptables, in a container take the image kubeproxy-iptables, which has both variants; " + found.Advice
	}
	return found
}

var (
	moduleNames = regexp.MustCompile(`\((?:kernel )?module ([^)]*)\)`)
	moduleName  = regexp.MustCompile(`^[a-z0-9]+(_[A-Za-z0-9]+)+$|^dummy$`)
)

// modules returns the kernel modules that a text names in parentheses.
func modules(text string) []string {
	var all []string
	for _, m := range moduleNames.FindAllStringSubmatch(text, -1) {
		for word := range strings.FieldsSeq(m[1]) {
			if word == "or" { // the modules of the two families
				break
			}
			if moduleName.MatchString(word) && !slices.Contains(all, word) {
				all = append(all, word)
			}
		}
	}
	return all
}
