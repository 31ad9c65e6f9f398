// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package goldentext makes what a program prints the same on every system, so that
// tests compare it with one text: paths and the systems' words for a file that
// is not there. It changes nothing else of what is printed.
package goldentext

import (
	"regexp"
	"strings"
)

// paths are what follows the name of a folder.
var paths = regexp.MustCompile(`DIR(\\[^\\\s:;"',]+)+`)

// systemTexts of Windows and of Wine, and those of Linux.
var systemTexts = strings.NewReplacer(
	"GetFileAttributesEx ", "stat ",
	"CreateFile ", "stat ",
	"The system cannot find the file specified.", "no such file or directory",
	"The system cannot find the path specified.", "no such file or directory",
	"File not found.", "no such file or directory",
	"Path not found.", "no such file or directory",
)

// Normalize returns text with DIR for a folder's name, in JSON too.
func Normalize(text, dir string) string {
	text = strings.ReplaceAll(text, dir, "DIR")
	text = strings.ReplaceAll(text, strings.ReplaceAll(dir, `\`, `\\`), "DIR") // as JSON has it
	text = paths.ReplaceAllStringFunc(text, func(path string) string { return strings.ReplaceAll(path, `\`, "/") })
	return systemTexts.Replace(text)
}
