// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/userspace"
)

var userspaceOptions = userspace.Options{Rules: iptablesOptions}

func renderUserspace(t *testing.T, want *service.Snapshot) []byte {
	t.Helper()
	all, _ := userspace.Render(want, userspaceOptions)
	return []byte(all.String())
}

// writeUserspace writes the chains that are not in the skeleton or differ there.
func writeUserspace(_ *testing.T, want *service.Snapshot, _ scenarioOptions) string {
	return writeChains(want, func(f service.Family, s *service.Snapshot) iptables.Tables {
		return userspace.Document(f, s, userspaceOptions)
	})
}
