// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scale writes many Services to a real API server, changes them at a
// rate, and tells when each change came into force in a kernel, for tests of
// scale and for the bench. Nobody serves at the endpoints' addresses. What
// speed is good enough is left to the callers.
package scale
