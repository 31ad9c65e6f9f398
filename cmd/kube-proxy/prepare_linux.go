// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"runtime"

	"k8s.io/klog/v2"

	"kubeproxy/config"
	"kubeproxy/platform/linux/sysctl"
)

// prepare makes the settings of the system. What cannot be set is logged: the
// node may work all the same.
func prepare(ctx context.Context, c *config.Config) error {
	log := klog.FromContext(ctx)
	files := sysctl.Host()
	all := append(sysctl.Apply(files, sysctlSettings(c)), sysctl.OOMScore(files, int(*c.OOMScoreAdj)))
	for _, o := range append(all, sysctl.Forwarding(files)...) {
		switch o.Action {
		case sysctl.Kept:
			log.V(2).Info("System setting: " + o.String())
		case sysctl.Written:
			log.Info("System setting: " + o.String())
		case sysctl.Failed, sysctl.Unmet:
			log.Info("Warning: system setting "+o.String(), "setting", o.Name, "want", o.Want, "have", o.Have)
		}
	}
	return nil
}

func sysctlSettings(c *config.Config) sysctl.Settings {
	k := &c.Conntrack
	return sysctl.Settings{
		MaxPerCore:     int(*k.MaxPerCore),
		CPUs:           runtime.NumCPU(),
		Min:            int(*k.Min),
		TCPEstablished: k.TCPEstablishedTimeout.Duration,
		TCPCloseWait:   k.TCPCloseWaitTimeout.Duration,
		TCPBeLiberal:   k.TCPBeLiberal,
		UDP:            k.UDPTimeout.Duration,
		UDPStream:      k.UDPStreamTimeout.Duration,
	}
}
