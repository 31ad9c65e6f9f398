// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
)

// checkProxyName rejects a name that is invalid as a label value.
func (b *build) checkProxyName(f *Flags) {
	const flag = "service-proxy-name"
	switch {
	case f.changed(flag) && f.ProxyName == "":
		b.errs = append(b.errs, fmt.Errorf("--%s: is empty: want the value of a label such as my-proxy, or leave it out", flag))
	case validation.IsValidLabelValue(f.ProxyName) != nil:
		b.errs = append(b.errs, fmt.Errorf("--%s: %.80q is no value of a label: want at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends", flag, f.ProxyName))
	}
}
