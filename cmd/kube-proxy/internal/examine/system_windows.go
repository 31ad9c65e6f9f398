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

// startAdvice says how to start a proxy on the node.
const startAdvice = "sc.exe query kube-proxy, or kubectl -n kube-system get pods -o wide --field-selector spec.nodeName=%s, says why none runs; sc.exe start kube-proxy starts it where it is a service"

// systemChecks returns the checks of a Windows node, and adds what it has of a proxy that is silent.
func systemChecks(_ context.Context, x *Examination, want services, silent *doctor.Silent) ([]doctor.Check, error) {
	d := hns.NewDriver()
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	folder := filepath.Dir(hns.StateFile())
	log := cmp.Or(x.options.Proxy.Flags.LogFile, scm.LogFile(folder, scm.ServiceName))
	n := &windowsdoctor.Node{
		Options: hns.OptionsOf(x.config), List: d.List, PortsLeft: d.PortsLeft, Windows: &windowsdoctor.System{}, CNI: windowsdoctor.SystemCNI,
		Program: program, Folder: folder, Files: []string{hns.StateFile(), string(hns.SettingsFile()), log},
		Holder: x.holder, Answered: x.proxy.Answer != nil, AnsweredAt: x.answeredAt(), BeforeStart: x.options.BeforeStart, Services: want, Servers: serversOf(x.config),
	}
	silent.Hung = n.Hung
	return n.Checks(), nil
}

// probeMode has nothing to ask, as the network of HNS may be created later.
func probeMode(*config.Config, mode.Descriptor, service.Family) error { return nil }
