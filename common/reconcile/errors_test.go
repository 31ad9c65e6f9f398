// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"testing"
)

func TestInForce(t *testing.T) {
	never, now := &UnsupportedError{Text: "never"}, &DegradedError{errRefused}
	for name, tt := range map[string]struct {
		err                  error
		inForce, unsupported bool
	}{
		"never":           {&PortError{Err: never}, true, true},
		"for now":         {&PortError{Err: now}, true, false},
		"both":            {&PortError{Err: errors.Join(never, now)}, true, false},
		"worse":           {&PortError{Err: errors.Join(never, now, errRefused)}, false, false},
		"another is":      {errors.Join(&PortError{Err: now}, &PortError{Err: errRefused}), false, false},
		"nothing at all":  {nil, false, false},
		"what never will": {&DegradedError{never}, true, true},
	} {
		if InForce(tt.err) != tt.inForce || Unsupported(tt.err) != tt.unsupported {
			t.Errorf("%s: in force %t, unsupported %t; want %t, %t", name, InForce(tt.err), Unsupported(tt.err), tt.inForce, tt.unsupported)
		}
	}
}
