// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package descriptor

import (
	"kubeproxy/common/metrics"
	"kubeproxy/platform/linux/userspace"
)

// relay implements mode.Relay.
type relay struct{ *userspace.Backend }

// Use implements mode.Relay.
func (r relay) Use() *metrics.Relay {
	use := r.Backend.Use()
	all := &metrics.Relay{Open: use.Open, Limit: use.Limit, Refused: map[string]uint64{}}
	for _, reason := range userspace.Reasons() {
		all.Refused[string(reason)] = use.Refused[reason]
	}
	return all
}
