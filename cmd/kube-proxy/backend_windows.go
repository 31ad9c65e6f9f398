// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/config"
)

const hostOS = config.Windows

// newBackends returns the backends of the mode that c asks for.
func newBackends(_ context.Context, c *config.Config, o *options) ([]*backend, map[service.Family]string, error) {
	return nil, nil, checkMode(c, o)
}

// allBackends returns a backend of every mode. There is none to clean up
// after yet.
func allBackends(*config.Config) ([]*backend, error) {
	return nil, nil
}

// prepare has nothing to set on Windows.
func prepare(context.Context, *config.Config) error {
	return errors.New("--init-only is for Linux")
}

func keepPrepared(context.Context, *effective, *observers) {}

func tracked() *metrics.Tracked { return nil }
