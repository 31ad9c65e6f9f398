// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package outage tests the program through what may befall an API server:
// crashes, silence, refusals, broken answers, forgotten versions, and through
// many changes. What must hold throughout is that traffic flows, that nothing
// is flushed, and that the kernel has what the API server says once that can be
// asked again. What Services should mean is tested elsewhere.
package outage
