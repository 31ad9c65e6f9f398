// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package tiny

import (
	"os"
	"testing"
)

func TestGood(t *testing.T) {
	text, err := Read()
	if err != nil || text != "word\n" {
		t.Fatalf("%q, %v", text, err)
	}
	t.Logf("on kernel %s", os.Getenv("KUBEPROXY_VM"))
}

func TestBad(t *testing.T) { t.Fatal("bad") }
