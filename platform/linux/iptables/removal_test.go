// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRemovalOrder checks that rules that reject are removed before rules that
// translate.
func TestRemovalOrder(t *testing.T) {
	c := &change{deletes: []id{{nat, servicesChain}, {filter, servicesChain}, {mangle, "KUBE-PROXY-CANARY"}}}
	got := regexp.MustCompile(`(?m)^\*\w+|^-X .*`).FindAllString(c.removal(), -1)
	want := []string{"*filter", "-X KUBE-SERVICES", "*nat", "-X KUBE-SERVICES", "*mangle", "-X KUBE-PROXY-CANARY"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
