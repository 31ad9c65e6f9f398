// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scale writes many Services to a real API server, changes them at a rate, and
// records when each change came into force in a kernel, for tests of scale and for the
// bench. Nothing serves at the endpoints' addresses. Callers decide which speed is
// sufficient.
package scale
