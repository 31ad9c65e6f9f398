// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package help prints the help of commands: descriptions, commands, and flags under the
// headings of the configuration.
package help
