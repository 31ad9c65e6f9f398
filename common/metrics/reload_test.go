// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"
	"time"
)

func TestReloaded(t *testing.T) {
	const (
		good = "kubeproxy_config_last_reload_successful"
		when = "kubeproxy_config_last_reload_success_timestamp_seconds"
	)
	m := New(Options{})
	m.Loaded(time.Unix(1, 0))
	for i, step := range []struct {
		what       Reload
		good, when float64
	}{{Rejected, 0, 1}, {Rejected, 0, 1}, {Unchanged, 1, 12}, {Rejected, 0, 12}, {Applied, 1, 14}, {Restart, 1, 14}} {
		m.Reloaded(step.what, time.Unix(int64(10+i), 0))
		if v := value(t, m.registry, good, ""); v != step.good {
			t.Errorf("after step %d, %s: successful is %v, want %v", i, step.what, v, step.good)
		}
		if v := value(t, m.registry, when, ""); v != step.when {
			t.Errorf("after step %d, %s: timestamp is %v, want %v", i, step.what, v, step.when)
		}
	}
	for what, want := range map[Reload]float64{Rejected: 3, Applied: 1, Unchanged: 1, Restart: 1} {
		if v := value(t, m.registry, "kubeproxy_config_reloads_total", string(what)); v != want {
			t.Errorf("%s: counted %v, want %v", what, v, want)
		}
	}
	if v := value(t, New(Options{}).registry, "kubeproxy_config_reloads_total", "rejected"); v != 0 {
		t.Errorf("the counter is %v at the start, want 0", v)
	}
}
