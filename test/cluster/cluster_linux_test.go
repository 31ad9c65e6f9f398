// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/test/netlab"
)

func TestControlPlaneComesUp(t *testing.T) {
	begin := time.Now()
	_, c := start(t, Options{})
	version, err := c.Client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := version.GitVersion, "v1.37.2"; got != want {
		t.Errorf("version = %s, want %s", got, want)
	}
	etcd, err := c.Etcd.Memory()
	if err != nil {
		t.Error(err)
	}
	api, err := c.APIServer.Memory()
	if err != nil {
		t.Error(err)
	}
	t.Logf("ready after %s, resident: etcd %d MB, API server %d MB", time.Since(begin), etcd>>20, api>>20)
}

func TestCloseLeavesNoProcess(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{Clients: []string{"control"}})
	programs, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(t.Context(), programs, Options{Host: lab.Host("control"), Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	pids := []int{c.Etcd.Pid(), c.APIServer.Pid()}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("process %d after Close: %v, want %v", pid, err, unix.ESRCH)
		}
	}
	if got := []int{c.Etcd.Pid(), c.APIServer.Pid()}; got[0] != 0 || got[1] != 0 {
		t.Errorf("Pid = %v after Close, want 0", got)
	}
}
