// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

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

// watchHiddenListeners checks regularly, until ctx ends, for listeners of programs on the
// node that NodePorts hide. Such a fault is otherwise silent: the program listens, but
// its clients reach a Service.
func watchHiddenListeners(ctx context.Context, t *track.Tracker, to *health.Monitor, net fs.FS) {
	log := klog.FromContext(ctx)
	latest := ""
	for {
		found, err := listeners.List(net)
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
		case <-time.After(settingsRetry):
		}
	}
}

// hiddenListeners names the listeners that NodePorts of s hide, empty for none.
func hiddenListeners(s *service.Snapshot, found []listeners.Listener) string {
	if s == nil || len(found) == 0 {
		return ""
	}
	type key struct {
		protocol service.Protocol
		port     uint16
	}
	first, n := "", 0
	for _, f := range service.Families {
		by := map[key]listeners.Listener{}
		for _, l := range found {
			if isHidden(s.Node, f, l) {
				by[key{l.Protocol, l.Addr.Port()}] = l
			}
		}
		for p := range s.Ports(f) {
			l, hides := by[key{p.Name.Protocol, nodePort(p)}]
			if !hides {
				continue
			}
			if n++; first == "" {
				first = fmt.Sprintf("%s/%s hides a program that listens on %s/%s", p.Name.Namespace, p.Name.Name, l.Addr, l.Protocol)
			}
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d NodePorts are ports that programs of this node listen on, the first of them: %s", n, first)
}

// nodePort returns 0 for a Service port without one.
func nodePort(p *service.Port) uint16 {
	for _, f := range p.Frontends {
		if f.Kind == service.NodePort {
			return f.Port
		}
	}
	return 0
}

// isHidden returns whether NodePorts of f take the traffic to l.
func isHidden(node *service.Node, f service.Family, l listeners.Listener) bool {
	a := l.Addr.Addr()
	if a.IsUnspecified() {
		return a.Is6() || f == service.IPv4 // an IPv6 wildcard socket serves both families, see IPV6_V6ONLY in ipv6(7)
	}
	return service.FamilyOf(a) == f && node.AnswersNodePorts(a)
}
