// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"

	"kubeproxy/config"
	"kubeproxy/platform/linux/sysctl"
)

// PendingSettings lists the system settings that Prepare would change, one a line, and
// changes none.
func PendingSettings(c *config.Config) []string {
	return changes(sysctl.Apply(readOnlyFiles{sysctl.Host()}, Settings(c)))
}

// PendingScore is PendingSettings for what applies to the process of the proxy, which
// Prepare does not set.
func PendingScore(c *config.Config) []string {
	return changes([]sysctl.Outcome{sysctl.OOMScore(readOnlyFiles{sysctl.Host()}, int(*c.OOMScoreAdj))})
}

// changes are the lines of what was written.
func changes(all []sysctl.Outcome) []string {
	var lines []string
	for _, o := range all {
		if o.Action == sysctl.Written {
			lines = append(lines, fmt.Sprintf("~ %s: %s -> %s", o.Name, o.Have, o.Want))
		}
	}
	return lines
}

// readOnlyFiles takes what is written, and writes nothing.
type readOnlyFiles struct{ sysctl.Files }

// WriteFile implements sysctl.Files.
func (readOnlyFiles) WriteFile(string, []byte) error { return nil }
