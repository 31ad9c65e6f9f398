// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os"
	"testing"

	"kubeproxy/test/program"
)

// kubeProxy is the proxy, freshly built for each run of the tests.
var kubeProxy program.Program

func TestMain(m *testing.M) {
	confined()
	listening()
	attackingLease()
	os.Exit(program.Main(m, &kubeProxy))
}
