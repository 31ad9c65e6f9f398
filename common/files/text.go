// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// Text returns what a file has as UTF-8, without a byte order mark. A console of
// Windows writes UTF-16 when output goes to a file, and says so with such a mark;
// without one nothing is changed.
func Text(content []byte) []byte {
	text, _, err := transform.Bytes(unicode.BOMOverride(transform.Nop), content)
	if err != nil { // cut in the middle of a letter: who reads it will tell
		return content
	}
	return text
}
