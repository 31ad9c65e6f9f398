// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// Text returns content as UTF-8 without a byte order mark. Windows PowerShell redirects
// output to files as UTF-16 with such a mark. Without a mark, Text changes nothing. See
// https://learn.microsoft.com/powershell/module/microsoft.powershell.core/about/about_character_encoding.
func Text(content []byte) []byte {
	if len(content) == 0 || content[0] < 0xef { // no mark begins so, and nothing is copied
		return content
	}
	text, _, err := transform.Bytes(unicode.BOMOverride(transform.Nop), content)
	if err != nil { // truncated within a character; the parser reports it
		return content
	}
	return text
}
