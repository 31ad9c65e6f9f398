// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package collect

import (
	"context"
	"io"

	"kubeproxy/common/support"
)

// logPatterns is empty: the proxy does not run here.
var logPatterns = []string{}

func writeJournal(context.Context, io.Writer) (bool, error) { return false, nil }

func writeSystem(io.Writer) error { return nil }

func systemParts(*collector) []support.Part { return nil }
