// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/listeners"
)

// sockets returns the socket tables of this thread's network namespace, see proc(5).
func sockets() fs.FS { return os.DirFS("/proc/thread-self/net") }

// hiddenInterval is the pause between two checks of WatchHiddenListeners.
const hiddenInterval = time.Minute

// WatchHiddenListeners checks regularly, until ctx ends, for listeners of programs on the
// node that NodePorts hide. Such a fault is otherwise silent: the program listens, but
// its clients reach a Service.
func WatchHiddenListeners(ctx context.Context, t *track.Tracker, to *health.Monitor) {
	log := klog.FromContext(ctx)
	latest := ""
	for {
		found, err := listeners.List(sockets())
		text := hiddenListeners(t.Latest(), found)
		if err != nil {
			text = ""
			log.V(2).Info("Programs that listen are not known", "err", err)
		}
		count, _, _ := strings.Cut(text, ", the first")
		to.SetDetailedCondition("node-ports", count, text)
		if text != "" && text != latest {
			log.Info("Warning: a NodePort hides a program of this node", "what", text)
		}
		latest = text
		select {
		case <-ctx.Done():
			return
		case <-time.After(hiddenInterval):
		}
	}
}

// hiddenListeners names the listeners that NodePorts of s hide, empty for none.
func hiddenListeners(s *service.Snapshot, found []listeners.Listener) string {
	all := listeners.HiddenBy(s, found)
	if len(all) == 0 {
		return ""
	}
	first := all[0]
	return fmt.Sprintf("%d NodePorts are ports that programs of this node listen on, the first of them: %s/%s hides a program that listens on %s/%s",
		len(all), first.Port.Name.Namespace, first.Port.Name.Name, first.Listener.Addr, first.Listener.Protocol)
}
