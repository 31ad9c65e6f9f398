// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"

	"kubeproxy/config"
	"kubeproxy/platform/linux/sysctl"
)

// PendingSettings lists the system settings that the proxy would change, one a line, and
// changes none.
func PendingSettings(c *config.Config) []string {
	files := readOnlyFiles{sysctl.Host()}
	var lines []string
	for _, o := range append(sysctl.Apply(files, Settings(c)), sysctl.OOMScore(files, int(*c.OOMScoreAdj))) {
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
