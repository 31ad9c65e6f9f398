// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"fmt"
	"testing"
)

// Errors about single ports only are partial success, however they are nested.
func TestOnlyPortErrors(t *testing.T) {
	port := &PortError{Err: errRefused}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"nothing":                           {nil, true},
		"no port's":                         {errRefused, false},
		"a port's":                          {port, true},
		"two":                               {errors.Join(port, port), true},
		"a port's in words":                 {fmt.Errorf("apply: %w", port), true}, // where definitions differed
		"two in words":                      {fmt.Errorf("apply: %w", errors.Join(port, port)), true},
		"two in one format":                 {fmt.Errorf("%w and %w", port, port), true},
		"a port's and another":              {errors.Join(port, errRefused), false},
		"a port's and another, in a format": {fmt.Errorf("%w and %w", port, errRefused), false},
		"deeper":                            {errors.Join(port, fmt.Errorf("x: %w", errors.Join(port, errRefused))), false},
		"deeper, all of ports":              {errors.Join(port, fmt.Errorf("x: %w", errors.Join(port))), true},
		"what never will":                   {&PortError{Err: &UnsupportedError{Text: "never"}}, true},
		"several within a port's":           {&PortError{Err: errors.Join(errRefused, errRefused)}, true},
		"a list of none":                    {noErrors{}, false},
	} {
		if got := OnlyPortErrors(tt.err); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// noErrors is an error that joins none.
type noErrors struct{}

func (noErrors) Error() string   { return "" }
func (noErrors) Unwrap() []error { return nil }

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
		"both in words":   {&PortError{Err: fmt.Errorf("x: %w", errors.Join(never, now))}, true, false},
	} {
		if InForce(tt.err) != tt.inForce || Unsupported(tt.err) != tt.unsupported {
			t.Errorf("%s: in force %t, unsupported %t; want %t, %t", name, InForce(tt.err), Unsupported(tt.err), tt.inForce, tt.unsupported)
		}
	}
}
