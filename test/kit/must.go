// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"errors"
	"os"
	"testing"
)

// Must fails the test if one of errs is not nil.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// WriteFile makes text the content of a file, which only its owner may read and write.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	Must(t, os.WriteFile(path, []byte(text), 0o600))
}

// Nightly returns whether tests have hours: KUBEPROXY_NIGHTLY is set.
func Nightly() bool { return os.Getenv("KUBEPROXY_NIGHTLY") != "" }
