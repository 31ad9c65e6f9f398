// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hive

import (
	"bytes"
	"encoding/binary"
	"testing"

	"www.velocidex.com/golang/regparser"
)

// TestEmpty reads a hive with the reader of another project.
func TestEmpty(t *testing.T) {
	text := Empty()
	if len(text) != 2*block {
		t.Errorf("%d bytes, want %d", len(text), 2*block)
	}
	if !bytes.Equal(text, Empty()) {
		t.Error("two hives differ")
	}
	r, err := regparser.NewRegistry(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	root := r.OpenKey("")
	if root == nil {
		t.Fatal("no root key")
	}
	if root.Name() != "ROOT" || len(root.Subkeys()) != 0 || len(root.Values()) != 0 {
		t.Errorf("root %q with %d subkeys and %d values, want an empty ROOT", root.Name(), len(root.Subkeys()), len(root.Values()))
	}
	if sum := r.BaseBlock.CheckSum(); sum != checksum(text[:508]) {
		t.Errorf("checksum %x", sum)
	}
}

// TestCells checks that cells fill the bin.
func TestCells(t *testing.T) {
	bin := Empty()[block:]
	at := binHeader
	for at < block {
		size := int32(binary.LittleEndian.Uint32(bin[at:]))
		if size < 0 {
			size = -size
		}
		if size == 0 || size%8 != 0 {
			t.Fatalf("a cell of %d bytes at %d", size, at)
		}
		at += int(size)
	}
	if at != block {
		t.Errorf("cells end at %d, the bin at %d", at, block)
	}
}
