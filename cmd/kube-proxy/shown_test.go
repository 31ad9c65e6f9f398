// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/config"
)

// glance goes to look at each line that is logged.
type glance func(line string)

func (g glance) Write(line []byte) (int, error) {
	g(string(line))
	return len(line), nil
}

func (g glance) logger() klog.Logger {
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(g)))
}

// Who reads in the log what happened to the configuration finds it in the
// health report, too.
func TestReloadIsShownBeforeItIsSaid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	write(t, path, confHead+"healthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: 127.0.0.1:0\n")
	o := &options{}
	o.config.Config = path
	c, err := config.Load(&o.config, hostOS)
	if err != nil {
		t.Fatal(err)
	}
	b := []*backend{{mode: "nftables", family: service.IPv4}}
	r := &reloader{
		options: o, force: newEffective(path, c), mode: "nftables", servers: serveAt(t, "127.0.0.1:0").servers,
		observers: newObservers(c, b, "node-a", newContacts(true), klog.Logger{}),
	}
	r.observers.tracker = newTracker(c, "node-a", func(track.Problem) {}, klog.Logger{}, func() {})
	var shown []string
	r.log = glance(func(string) {
		shown = append(shown, r.observers.health.Report().Conditions[reloadCondition])
	}).logger()
	r.reject(errors.New("no such field"))
	if err := r.take(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	if len(shown) != 2 || shown[0] != "no such field" || shown[1] != "" {
		t.Errorf("shown when the file was said to be bad, and then good: %q", shown)
	}
}

// Who reads in the log why old rules are still there finds it in the health
// report, too.
func TestTroubleIsShownBeforeItIsSaid(t *testing.T) {
	var condition string
	said := 0
	x := &takeover{
		places:    []place{{remains: &leftRules{}, trouble: errors.New("no right")}},
		condition: func(text string) { condition = text },
		told:      map[string]string{},
		log: glance(func(line string) {
			said++
			if !strings.Contains(condition, "no right") {
				t.Errorf("%q is said, and %q shown", line, condition)
			}
		}).logger(),
	}
	if x.complain("", nil); said != 1 {
		t.Errorf("said %d times", said)
	}
}
