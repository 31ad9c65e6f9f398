// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// ChartTool builds the program that renders the chart as Helm does. It is of another
// module, whose dependencies the product does not have.
func ChartTool(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "release")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", file, ".")
	build.Dir = filepath.Join("..", "..", "build", "release")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return file
}
