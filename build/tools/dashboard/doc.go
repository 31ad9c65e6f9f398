// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command dashboard draws what the panels of the chart's dashboard show, at the places
// where Grafana puts them. It reads the answers of a Prometheus to the queries of the
// panels, which test/monitoring writes, and writes a PNG. It is a module of its own,
// because the product needs no library that plots.
package main
