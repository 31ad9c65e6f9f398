// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/report"
	"kubeproxy/test/kit"
)

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, b := kit.NewLog(0)
		p := newProgress(log, report.NewSources().Unsynced)
		p.expect("x")
		p.expect("y")
		ended := make(chan bool)
		go func() { ended <- p.wait(t.Context()) }()
		time.Sleep(3 * time.Second)
		p.done("x")
		p.done("x")
		time.Sleep(4 * time.Second)
		p.done("y")
		if !<-ended {
			t.Error("done, but wait says that the context ended")
		}
		want := []string{
			`I "Still reading and programming for the first time" waitingFor="services, endpointslices, nodes, x, y" elapsed="2s"`,
			`I "Still reading and programming for the first time" waitingFor="services, endpointslices, nodes, y" elapsed="6s"`,
		}
		if diff := cmp.Diff(want, kit.LogLines(b)); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}
