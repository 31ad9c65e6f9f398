// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import "kubeproxy/test/xtables"

// fake is a system that is as strict as a real one.
type fake struct{ *xtables.System }

func newFake() *fake { return &fake{xtables.New(nil)} }
