// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package examine

import (
	"cmp"
	"context"
	"os"
	"path/filepath"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	windowsdoctor "kubeproxy/platform/windows/doctor"
	"kubeproxy/platform/windows/hns"
	"kubeproxy/platform/windows/scm"
)

// setClockCommand sets the clock of the node.
const setClockCommand = "w32tm /resync"

// systemChecks returns the checks of a Windows node.
func systemChecks(_ context.Context, x *Examination, want services) ([]doctor.Check, error) {
	d := hns.NewDriver()
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	folder := filepath.Dir(hns.StateFile())
	log := cmp.Or(x.options.Proxy.Flags.LogFile, scm.LogFile(folder, scm.ServiceName))
	n := &windowsdoctor.Node{
		Options: hns.OptionsOf(x.config), List: d.List, PortsLeft: d.PortsLeft, Windows: &windowsdoctor.System{}, CNI: windowsdoctor.SystemCNI,
		Program: program, Folder: folder, Files: []string{hns.StateFile(), log},
		Holder: x.holder, Answered: x.proxy.Answer != nil, Services: want, Servers: serversOf(x.config),
	}
	return n.Checks(), nil
}

// probeMode has nothing to ask, as the network of HNS may be created later.
func probeMode(*config.Config, mode.Descriptor, service.Family) error { return nil }
