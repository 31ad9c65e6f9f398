// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"testing"
)

func TestNormalize(t *testing.T) {
	for name, given := range map[string]string{
		"plain":                "kind: Ä\r\n",
		"UTF-8 with a mark":    "\xef\xbb\xbfkind: Ä\r\n",
		"UTF-16 of Windows":    "\xff\xfek\x00i\x00n\x00d\x00:\x00 \x00\xc4\x00\r\x00\n\x00",
		"UTF-16 of the others": "\xfe\xff\x00k\x00i\x00n\x00d\x00:\x00 \x00\xc4\x00\r\x00\n",
	} {
		if got := string(Text([]byte(given))); got != "kind: Ä\r\n" {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, odd := range []string{"", "\xff", "\xfe\xff\x00", "\xff\xfea"} { // neither panics nor fails
		Text([]byte(odd))
	}
}
