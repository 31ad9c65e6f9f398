// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package judge makes real connections in a netlab network and holds what comes
// of them against the opinion of package route: who may answer, as whom it
// sees the client, how soon a refusal comes. What should be in force it is
// told.
package judge
