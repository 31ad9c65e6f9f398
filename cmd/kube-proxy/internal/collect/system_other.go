// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package collect

import (
	"context"
	"io"
)

// logPatterns returns none: the proxy does not run here.
func logPatterns(string) []string { return nil }

func writeJournal(context.Context, io.Writer) (bool, error) { return false, nil }

func writeSystem(io.Writer) error { return nil }

func systemParts(*collector) []Part { return nil }
