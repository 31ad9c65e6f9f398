// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTables(t *testing.T) {
	rows := [][]string{{"", "n"}, {"µs", "1"}, {"long", "1000"}}
	for name, tc := range map[string]struct{ got, want string }{
		"words": {Table(rows), `
|      | n    |
|------|------|
| µs   | 1    |
| long | 1000 |
`},
		"numbers": {Numbers(rows), `
|      |    n |
|------|-----:|
| µs   |    1 |
| long | 1000 |
`},
	} {
		if diff := cmp.Diff(tc.want, "\n"+tc.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
