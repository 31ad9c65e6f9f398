// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package outage contains only tests. They run the program through the failures of an API
// server: crashes, silence, errors, broken responses, compacted versions, and through
// many changes. All the time, traffic must flow and nothing may be flushed. Once the API
// server works again, the kernel must hold its state. The meaning of Services is tested
// elsewhere.
package outage
