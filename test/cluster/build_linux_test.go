// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"testing"

	"kubeproxy/test/vm"
)

// TestProgramsFromEnvironment checks that installed programs are used without a search
// and without a build.
func TestProgramsFromEnvironment(t *testing.T) {
	t.Setenv(vm.ControlPlaneVariable, "/some/where")
	t.Chdir(t.TempDir()) // below no module
	got, err := Build(t.Context(), os.Stderr)
	if want := (Programs{Etcd: "/some/where/etcd", APIServer: "/some/where/kube-apiserver"}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}
