// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package support writes the archive that a maintainer asks for: one file for each part,
// without secrets, bounded in size, with a list of what is in it and of what is not.
// Parts go in. A tar.gz comes out, and the list.
package support
