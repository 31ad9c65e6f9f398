// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package examine

import (
	"context"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

const setClockCommand, startAdvice = "", "%s"

func systemChecks(context.Context, *Examination, services, *doctor.Silent) ([]doctor.Check, error) {
	return nil, mode.ErrNoSystem
}

func probeMode(*config.Config, mode.Descriptor, service.Family) error { return mode.ErrNoSystem }
