// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// firstRetry is the pause after a first failed round. It doubles from there to the sync
// period.
const firstRetry = 250 * time.Millisecond

// watchPause is the pause after a failure of the watch.
const watchPause = 5 * time.Second

// watch reports foreign changes to m's rules to the loop until ctx ends. A failure of the
// watch does not end the proxy, because a resync finds drift, too.
func (m *member) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		err := m.loop.Backend.Watch(ctx, m.loop.DataplaneChanged)
		if ctx.Err() != nil {
			return nil
		}
		klog.FromContext(ctx).Error(err, "The watch of the rules for changes by others ended", "backend", m.String(), "retry", watchPause)
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
		m.loop.DataplaneChanged()
	}
	return nil
}
