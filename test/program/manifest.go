// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"testing"

	"sigs.k8s.io/yaml"
)

// Manifest returns objects as the documents of one YAML file.
func Manifest[T any](t *testing.T, objects ...T) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes()
}
