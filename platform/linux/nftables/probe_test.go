// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"slices"
	"testing"

	"kubeproxy/common/service"
)

// hasStatement reports whether a rule in ops has a statement of type S.
func hasStatement[S statement](ops []op) bool {
	return slices.ContainsFunc(ops, func(o op) bool {
		return o.verb == addRules && slices.ContainsFunc(o.chain.rules, func(r rule) bool {
			return slices.ContainsFunc(r, func(s statement) bool {
				_, is := s.(S)
				return is
			})
		})
	})
}

// addsBaseChain reports whether ops create a base chain.
func addsBaseChain(ops []op) bool {
	return slices.ContainsFunc(ops, func(o op) bool { return o.verb == addChain && o.chain.hook != nil })
}

// TestProbeFeatures checks that the error names exactly what the kernel rejects.
func TestProbeFeatures(t *testing.T) {
	refused := errors.New("no such file or directory")
	for situation, test := range map[string]struct {
		family  service.Family
		refuses func([]op) bool
		want    string
	}{
		"everything is there": {service.IPv4, func([]op) bool { return false }, ""},
		"no table of this family": {service.IPv6, func([]op) bool { return true },
			"the kernel lacks tables for IPv6 (module nf_tables): no such file or directory"},
		"no address types": {service.IPv6, hasStatement[isLocal],
			"the kernel lacks the type of an address in rules (module nft_fib_ipv6): no such file or directory"},
		"two things": {service.IPv4, func(ops []op) bool { return hasStatement[masquerade](ops) || hasStatement[reject](ops) },
			"the kernel lacks masquerading in rules (module nft_masq), rejecting in rules (module nft_reject_ipv4): no such file or directory"},
		"no random numbers": {service.IPv4, hasStatement[dnat],
			"the kernel lacks random numbers and translation in rules (module nft_numgen and nft_nat): no such file or directory"},
		"no chains for translation": {service.IPv4, addsBaseChain,
			"the kernel lacks chains of type nat (module nft_chain_nat): no such file or directory"},
		"no connection tracking": {service.IPv4, func(ops []op) bool { return hasStatement[translated](ops) || hasStatement[recordClient](ops) },
			"the kernel lacks connection tracking in rules (module nft_ct): no such file or directory"},
		"no clients map": {service.IPv4, hasStatement[recordClient],
			"the kernel lacks maps that rules write (module nf_tables of Linux 5.6): no such file or directory"},
		"something we do not know of": {service.IPv4, func(ops []op) bool { return len(ops) > 4 },
			"the kernel refuses the rules: no such file or directory"},
	} {
		t.Run(situation, func(t *testing.T) {
			err := probeFeatures(test.family, func(ops []op) error {
				if test.refuses(ops) {
					return refused
				}
				return nil
			})
			switch {
			case test.want == "" && err != nil, test.want != "" && (err == nil || err.Error() != test.want):
				t.Errorf("lacking = %v, want %q", err, test.want)
			case err != nil && !errors.Is(err, refused):
				t.Errorf("%v hides what the kernel said", err)
			}
		})
	}
}
