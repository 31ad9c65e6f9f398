// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/config"
)

// TestFamilies checks that the proxy starts without the secondary family, and not without
// the primary one.
func TestFamilies(t *testing.T) {
	const four, six = service.IPv4, service.IPv6
	for situation, test := range map[string]struct {
		bind    string
		lacks   []service.Family
		want    []service.Family
		missing map[service.Family]string
		err     string
	}{
		"both":                      {"0.0.0.0", nil, []service.Family{four, six}, nil, ""},
		"no IPv6, IPv4 first":       {"0.0.0.0", []service.Family{six}, []service.Family{four}, map[service.Family]string{six: "no IPv6 here"}, ""},
		"no IPv6, an IPv4 address":  {"192.0.2.1", []service.Family{six}, []service.Family{four}, map[service.Family]string{six: "no IPv6 here"}, ""},
		"no IPv6, IPv4 inside IPv6": {"::ffff:192.0.2.1", []service.Family{six}, []service.Family{four}, map[service.Family]string{six: "no IPv6 here"}, ""},
		"no IPv6, IPv6 first":       {"::", []service.Family{six}, nil, nil, "IPv6 is the primary family by bindAddress :: and cannot be programmed: no IPv6 here"},
		"no IPv4, IPv6 first":       {"2001:db8::1", []service.Family{four}, []service.Family{six}, map[service.Family]string{four: "no IPv4 here"}, ""},
		"neither":                   {"0.0.0.0", []service.Family{four, six}, nil, nil, "IPv4 is the primary family by bindAddress 0.0.0.0 and cannot be programmed: no IPv4 here"},
	} {
		t.Run(situation, func(t *testing.T) {
			c := &config.Config{}
			c.BindAddress = test.bind
			got, missing, err := familiesOf(c, func(f service.Family) error {
				for _, l := range test.lacks {
					if l == f {
						return errors.New("no " + f.String() + " here")
					}
				}
				return nil
			})
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != test.err {
				t.Errorf("error %q, want %q", text, test.err)
			}
			if len(missing) == 0 {
				missing = nil
			}
			if diff := cmp.Diff(test.want, got) + cmp.Diff(test.missing, missing); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
