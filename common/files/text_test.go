// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"os"
	"path/filepath"
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

// A large file without a mark is neither copied nor read into a buffer that grows.
func TestLargeFileIsCopiedOnce(t *testing.T) {
	const size = 8 << 20
	path := filepath.Join(t.TempDir(), "large.yaml")
	if err := os.WriteFile(path, bytes.Repeat([]byte("kind: Ä\n"), size/9), 0o600); err != nil {
		t.Fatal(err)
	}
	r := testing.Benchmark(func(b *testing.B) {
		for range b.N {
			content, _, err := Read(path, 2*size)
			if err != nil || len(Text(content)) < size/2 {
				b.Fatalf("%d bytes, %v", len(content), err)
			}
		}
	})
	if got := r.AllocedBytesPerOp(); got > size+size/8 {
		t.Errorf("%d bytes of memory for a file of %d", got, size)
	}
}
