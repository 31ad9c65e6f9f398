// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// TestReadBack compares what the tables hold with what they should hold, as text.
func TestReadBack(t *testing.T) {
	to := netip.MustParseAddrPort("10.96.0.10:80")
	const whole = `# socket acceleration, IPv4
# connect tcp 10.96.0.10:80, shop/web-000
#   10.1.0.1:80
#   10.1.0.2:80
`
	for name, c := range map[string]struct {
		alter        func(k *fake)
		off          bool
		held, wanted string
	}{
		"as it should be": {held: whole, wanted: whole},
		"nothing there":   {alter: func(k *fake) { k.active = nil }, wanted: whole},
		"switched off":    {off: true, held: whole},
		"list shortened":  {alter: func(k *fake) { k.entry(to, listOf(0, 1)) }, held: strings.Replace(whole, "#   10.1.0.1:80\n", "", 1), wanted: whole},
		"list emptied":    {alter: func(k *fake) { k.entry(to, 0) }, held: "# socket acceleration, IPv4\n", wanted: whole},
		"list outside":    {alter: func(k *fake) { k.entry(to, listOf(1<<30, 1)) }, held: "# socket acceleration, IPv4\n# connect tcp 10.96.0.10:80, shop/web-000\n#   its list is damaged\n", wanted: whole},
		"detached":        {alter: func(k *fake) { k.detached = errInjected }, held: strings.Replace(whole, "IPv4\n", "IPv4\n# not in force: injected\n", 1), wanted: whole},
		"list of none": {
			alter:  func(k *fake) { k.foreign(netip.MustParseAddrPort("10.96.0.9:80"), listOf(0, 1)) },
			held:   strings.Replace(whole, "IPv4\n", "IPv4\n# connect tcp 10.96.0.9:80, of no Service\n#   10.1.0.2:80\n", 1),
			wanted: whole,
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := &fake{family: service.IPv4}
			want := snapshot([]string{to.String(), "10.1.0.2:80", "10.1.0.1:80"}, []string{"10.96.0.11:80"})
			round(t, New(service.IPv4, k, Options{}), want)
			if c.alter != nil {
				c.alter(k)
			}
			held, wanted, err := New(service.IPv4, k, Options{Off: c.off}).ReadBack(want)
			if diff := cmp.Diff([2]string{c.held, c.wanted}, [2]string{held.String(), wanted.String()}); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// TestUnseenError says whether programs are there, or why nothing is known.
func TestUnseenError(t *testing.T) {
	for likely, want := range map[bool]string{
		true:  "programs are attached where socket acceleration of IPv6 attaches its own",
		false: "may not look for programs of socket acceleration (injected)",
	} {
		if err := (&UnseenError{Family: service.IPv6, Likely: likely, Err: errInjected}); !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
