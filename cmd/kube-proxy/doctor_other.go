// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package main

import (
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
	"kubeproxy/config"
)

const setClockCommand = ""

func systemChecks(*examination) ([]doctor.Check, error) { return nil, errUnsupportedOS }

func probeMode(*config.Config, v1alpha1.ProxyMode, service.Family) error { return errUnsupportedOS }
