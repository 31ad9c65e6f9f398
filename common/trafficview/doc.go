// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trafficview shows the traffic of Services. It has the answer of a running
// proxy, and the code with which kube-proxy top asks for it twice, computes rates and
// prints them. Counting is left to package traffic.
package trafficview

import (
	"time"

	"kubeproxy/common/traffic"
)

// Path is where the metrics server answers.
const Path = "/traffic"

// Response is the answer of a proxy.
type Response struct {
	Mode string `json:"mode"`
	Node string `json:"node"`
	traffic.Reading
}

// Answer is what -o json prints. New versions may add fields, but must not rename or remove any.
type Answer struct {
	Server string `json:"server"` // that was asked
	Mode   string `json:"mode"`
	Node   string `json:"node"`
	// Time is when the counters were read, Since when counting began.
	Time  time.Time `json:"time"`
	Since time.Time `json:"since"`
	// Seconds is the time that the rates cover, up to Time. It is 0 without rates.
	Seconds float64 `json:"seconds"`
	// Counted is what is counted besides connections.
	Counted  traffic.Kinds `json:"counted"`
	Services []Service     `json:"services"` // those with traffic
	// Total is what these carry together.
	Total Numbers `json:"total"`
	// Error is why not everything could be read.
	Error string `json:"error,omitempty"`
}

// Service is what a Service carries.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Numbers
	Endpoints []Endpoint `json:"endpoints,omitempty"`
}

// Endpoint is what an endpoint carries for a Service port.
type Endpoint struct {
	Port     string `json:"port,omitempty"`
	Protocol string `json:"protocol"`
	Address  string `json:"address,omitempty"` // empty for all that are gone
	Numbers
}

// Numbers are totals and rates.
type Numbers struct {
	traffic.Counts
	PerSecond *Rate `json:"perSecond,omitempty"`
}

// Rate is the traffic of a second.
type Rate struct {
	Connections float64 `json:"connections"`
	PacketsIn   float64 `json:"packetsIn,omitempty"`
	PacketsOut  float64 `json:"packetsOut,omitempty"`
	BytesIn     float64 `json:"bytesIn,omitempty"`
	BytesOut    float64 `json:"bytesOut,omitempty"`
}
