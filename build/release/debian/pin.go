// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"context"
	"fmt"
	"strings"
)

// listHeader begins a list of packages.
const listHeader = `# The packages of Debian ` + Release + ` in the images, from its signed index. make pins
# rewrites this list when the mirror has newer ones.
`

// Pin returns the list of the packages that the mirror has now.
func (c *Cache) Pin(ctx context.Context, archs ...string) (string, error) {
	var list strings.Builder
	list.WriteString(listHeader)
	for _, arch := range archs {
		a, err := c.apt(ctx, arch)
		if err != nil {
			return "", err
		}
		for _, name := range names {
			text, err := a.run(ctx, a.folder, "apt-cache", "show", "--no-all-versions", name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&list, "%s %s %s %s\n", name, arch, field(text, "Version"), field(text, "SHA256"))
		}
	}
	return list.String(), nil
}
