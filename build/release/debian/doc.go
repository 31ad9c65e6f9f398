// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package debian takes programs out of Debian's packages, for images.
//
// In goes a list of packages with version and checksum for each architecture. Out come
// the files that the programs need, at the places of a merged /usr. Packages come from
// the mirror that apt on this machine is configured for, and stay in a cache. Nothing is
// installed here, and nothing of a package runs.
package debian
