// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package modes

import (
	"context"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/windows/hns"
)

func withHints(d mode.Descriptor) mode.Descriptor { return d }

// Beside names nothing.
func Beside(*config.Config, service.Family) []string { return nil }

func accompany(context.Context, mode.Descriptor, mode.Setup, []*mode.Backend) {}

func companionTargets(*config.Config) []takeover.Target { return nil }

func removeAcceleration(context.Context, *config.Config) error { return nil }

func pendingAcceleration(context.Context, *config.Config) ([]string, error) { return nil, nil }

// Layers returns backends that plan what accompanies any mode: nothing here.
func Layers(*config.Config, []service.Family) []*mode.Backend { return nil }

func readBackAcceleration(*config.Config, service.Family, *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	return nil, nil, nil
}

// KeepSettings keeps text beside the state of mode kernelspace, for LastSettings.
func KeepSettings(_ context.Context, _ *config.Config, text []byte) error {
	return hns.SettingsFile().Save(text)
}

// LastSettings returns what the last proxy kept, nil if none did.
func LastSettings(*config.Config) ([]byte, error) { return hns.SettingsFile().Load() }

// IsBeside is for Linux.
func IsBeside(*config.Config, takeover.Target) bool { return false }
