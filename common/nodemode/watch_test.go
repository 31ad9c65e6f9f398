// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodemode

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// TestAnnotationChanges changes the annotation of the Node several times.
func TestAnnotationChanges(t *testing.T) {
	for situation, tt := range map[string]struct {
		annotations []string
		selected    map[v1alpha1.ProxyMode]string // by annotation, empty for an error
		ends        bool
		logged      string
	}{
		"as before":            {annotations: []string{"ipvs", "ipvs"}},
		"another mode":         {annotations: []string{"iptables"}, selected: map[v1alpha1.ProxyMode]string{"iptables": "iptables"}, ends: true, logged: `next="iptables"`},
		"none any more":        {annotations: []string{""}, selected: map[v1alpha1.ProxyMode]string{"": "userspace"}, ends: true, logged: `next="userspace"`},
		"removed and set":      {annotations: []string{"", "ipvs"}},
		"one that cannot work": {annotations: []string{"userspace"}, selected: map[v1alpha1.ProxyMode]string{"userspace": "nftables"}, logged: "the present one stays"},
		"no such mode":         {annotations: []string{"ipvs", "magic", "magic"}, selected: map[v1alpha1.ProxyMode]string{"": "nftables"}, logged: "does not exist"},
		"nothing would start":  {annotations: []string{"iptables"}, logged: "could not start"},
		"one is configured":    {annotations: []string{"iptables"}, selected: map[v1alpha1.ProxyMode]string{"iptables": ""}, logged: "since one is configured"},
	} {
		t.Run(situation, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logText := &bytes.Buffer{}
				log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(logText), textlogger.Verbosity(2)))
				w := NewWatcher(Options{
					Modes: []v1alpha1.ProxyMode{"nftables", "iptables", "ipvs", "userspace"}, Mode: "nftables", Annotated: "ipvs", Log: log,
					Select: func(_ context.Context, m v1alpha1.ProxyMode) (string, error) {
						if next, ok := tt.selected[m]; ok {
							return next, nil
						}
						return "", errors.New("the kernel is out of order")
					},
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				for _, mode := range tt.annotations {
					n := &corev1.Node{}
					n.Annotations = map[string]string{Annotation: mode}
					w.NodeChanged(n)
				}
				if got := w.Run(ctx); got != tt.ends {
					t.Errorf("restart %t, want %t", got, tt.ends)
				}
				if n := strings.Count(logText.String(), "does not exist"); n > 1 {
					t.Errorf("the same is said %d times", n)
				}
				if !strings.Contains(logText.String(), tt.logged) || tt.logged == "" && logText.Len() > 0 {
					t.Errorf("the log says %q, want %q", logText, tt.logged)
				}
			})
		})
	}
	var disabled *Watcher // if the annotation does not count
	disabled.NodeChanged(&corev1.Node{})
	if disabled.Run(t.Context()) {
		t.Error("a nil Watcher asks for a restart")
	}
}
