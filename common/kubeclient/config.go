// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeclient has what every client of the API server shares.
//
// The settings of the connection go in. The configuration of a client, the remedy for an
// error, a short log of outages, and counts of requests come out. The package reads
// nothing from the API server itself.
package kubeclient

import (
	"errors"
	"fmt"
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	baseconfig "k8s.io/component-base/config/v1alpha1"
)

// Options are the settings of the connection to the API server.
type Options struct {
	Connection baseconfig.ClientConnectionConfiguration
	Master     string // the address, in place of the kubeconfig's
	UserAgent  string
}

// Config returns the client configuration for the API server: from the kubeconfig, with
// Master in place of its address, or from within the cluster.
func (o *Options) Config() (*rest.Config, error) {
	file := o.Connection.Kubeconfig
	if o.Master != "" {
		if err := checkServer("--master", o.Master); err != nil {
			return nil, err
		}
	}
	build := rest.InClusterConfig
	switch {
	case file != "":
		build = func() (*rest.Config, error) { return readKubeconfig(file, o.Master) }
	case o.Master != "":
		build = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags(o.Master, "") }
	}
	to, err := build()
	switch {
	case errors.Is(err, rest.ErrNotInCluster):
		return nil, errors.New("nothing to read Services from: want --kubeconfig FILE, --master ADDRESS, --manifests PATH, or to run as a pod in a cluster")
	case err != nil && file != "":
		return nil, err // err names the file
	case err != nil:
		return nil, fmt.Errorf("find the API server from within a pod: %w; want the token of a service account mounted there (automountServiceAccountToken), or --kubeconfig FILE", err)
	}
	to.QPS, to.Burst = o.Connection.QPS, int(o.Connection.Burst)
	to.ContentType = o.Connection.ContentType
	to.AcceptContentTypes = o.Connection.AcceptContentTypes
	to.UserAgent = o.UserAgent
	to.Wrap(func(next http.RoundTripper) http.RoundTripper { return stayer{next} })
	return to, nil
}

// stayer refuses redirects. The API server sends none for what is asked here, and each request
// has the token, also one that a redirect leads elsewhere.
type stayer struct{ http.RoundTripper }

var _ utilnet.RoundTripperWrapper = stayer{}

// RoundTrip implements http.RoundTripper.
func (s stayer) RoundTrip(q *http.Request) (*http.Response, error) {
	answer, err := s.RoundTripper.RoundTrip(q)
	if err != nil || answer.StatusCode/100 != 3 {
		return answer, err
	}
	_ = answer.Body.Close()
	return nil, fmt.Errorf("HTTP status %d, a redirect to %q: want the address of the API server itself", answer.StatusCode, answer.Header.Get("Location"))
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (s stayer) WrappedRoundTripper() http.RoundTripper { return s.RoundTripper }
