// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"strings"

	"kubeproxy/common/service"
)

// lineName stands before the name of a Service port at the end of a line of a plan.
const lineName = " # "

// LineFor returns a line of a plan that is for the Service port of this name. It ends in
// " # " and the name, unless text has the name already.
func LineFor(n service.PortName, text string) string {
	if name := n.String(); !strings.Contains(text, name) {
		return text + lineName + name
	}
	return text
}
