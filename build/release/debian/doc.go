// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package debian takes programs out of Debian's packages, for images.
//
// A list of packages goes in, with version and checksum for each architecture. The files
// that the programs need come out, at the paths of a merged /usr. Packages come from the
// mirror that apt on this machine is configured for, and stay in a cache. Nothing is
// installed here, and no program of a package runs.
package debian
