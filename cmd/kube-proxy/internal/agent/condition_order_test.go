// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"path/filepath"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/condition"
	"kubeproxy/config"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
)

// lineFunc is called with each line that is logged.
type lineFunc func(line string)

func (l lineFunc) Write(line []byte) (int, error) {
	l(string(line))
	return len(line), nil
}

func (l lineFunc) logger() klog.Logger {
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(l)))
}

// TestReloadIsReportedBeforeItIsLogged checks that a log line about the configuration
// follows the condition in the health report.
func TestReloadIsReportedBeforeItIsLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	kit.WriteFile(t, path, confHead+"healthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: 127.0.0.1:0\n")
	o := NewOptions(modes.All())
	o.Flags.Config = path
	c, err := config.Load(&o.Flags, config.Linux)
	if err != nil {
		t.Fatal(err)
	}
	p := newTestProxy(o, c, klog.Logger{})
	var shown []string
	p.log = lineFunc(func(string) {
		shown = append(shown, p.reports.Health.Report().Conditions[string(condition.Configuration)])
	}).logger()
	r := &reloader{proxy: p, servers: newTestServers(t, "127.0.0.1:0").servers}
	r.reject(errors.New("no such field"))
	if err := r.adopt(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	if len(shown) != 2 || shown[0] != "no such field" || shown[1] != "" {
		t.Errorf("shown when the file was said to be bad, and then good: %q", shown)
	}
}
