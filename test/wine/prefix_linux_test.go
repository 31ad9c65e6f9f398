// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestConcurrentCopies creates and removes many copies in parallel, as the tests of
// several packages do. No copy in use may be removed.
func TestConcurrentCopies(t *testing.T) {
	w := Windows{runs: t.TempDir()}
	dead := filepath.Join(w.runs, "dead")
	if err := errors.Join(os.Mkdir(dead, 0o755), os.WriteFile(dead+".lock", nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				folder, release, err := w.createCopy(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(os.Remove(folder), release()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	left, err := filepath.Glob(filepath.Join(w.runs, "*"))
	if err != nil || len(left) != 1 { // only the lock of lockCopies
		t.Errorf("left: %v, %v", left, err)
	}
}
