// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package explain says what happens to a connection and why. A Tracker and a Query go in,
// an Explanation comes out: the client, the Service, each rule of Kubernetes that applies,
// and for each endpoint whether it gets new connections. Package route decides; this
// package only adds the reasons. Parse reads what a user types. Explanation.Print is for
// people; the JSON form is stable.
package explain
