// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
)

func TestStart(t *testing.T) {
	defer klog.ClearLogger()
	defer klog.StopFlushDaemon()
	c := &logsapi.LoggingConfiguration{Format: "json", Verbosity: 2}
	c.FlushFrequency.Duration.Duration = time.Second
	var b bytes.Buffer
	log, err := Start(c, &b)
	if err != nil {
		t.Fatal(err)
	}
	log.V(2).Info("shown", "service", "a/b", "took", 2*time.Second)
	log.V(3).Info("hidden")
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil || line["msg"] != "shown" || line["service"] != "a/b" || line["took"] != "2s" {
		t.Errorf("json: %v, %s", err, b.String())
	}

	b.Reset()
	c = &logsapi.LoggingConfiguration{Format: "text", VModule: logsapi.VModuleConfiguration{{FilePattern: "logging_*", Verbosity: 4}}}
	c.FlushFrequency.Duration.Duration = time.Second
	if log, err = Start(c, &b); err != nil {
		t.Fatal(err)
	}
	log.V(4).Info("shown")
	log.V(5).Info("hidden")
	klog.Background().Info("also shown")
	var got []string
	for line := range strings.Lines(b.String()) {
		_, text, _ := strings.Cut(line, "] ")
		got = append(got, line[:1]+" "+strings.TrimSpace(text))
	}
	if diff := cmp.Diff([]string{`I "shown"`, `I "also shown"`}, got); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}
