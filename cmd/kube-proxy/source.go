// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"kubeproxy/common/source"
	"kubeproxy/config"
)

// newSource returns the source of Services: manifests if any are named, else the API
// server.
func newSource(o *options, c *config.Config, node string, sources *sourceStatus, log klog.Logger) (source.Source, error) {
	if len(o.manifests) > 0 {
		if c.ClientConnection.Kubeconfig != "" || c.Master != "" {
			log.Info("The API server is not read, because --manifests is given")
		}
		log.Info("Services come from manifests", "manifests", o.manifests)
		return newManifests(o.manifests, node, sources, log), nil
	}
	to, err := apiConfig(c)
	if err != nil {
		return nil, err
	}
	log.Info("Services come from the API server", "server", to.Host)
	if since, is := expired(to, time.Now()); is {
		log.Info("Warning: the client certificate has expired; the API server will refuse it", "kubeconfig", c.ClientConnection.Kubeconfig, "since", since.Format(time.RFC3339), "remedy", "renew the user's client certificate")
	}
	outages := newOutages(log, remedies(c))
	return &source.APIServer{
		Config: to, NodeName: node, ProxyName: c.ProxyName,
		Contact: func(kind string) {
			sources.recordContact(kind)
			outages.recovered(kind)
		},
		WatchTimedOut: func(kind string) {
			sources.watchTimedOut(kind)
			log.V(2).Info("A watch said nothing for long and is asked for again", "kind", kind)
		},
		Report: func(err error) {
			sources.recordError(err)
			outages.recordError(err)
		},
	}, nil
}

// apiConfig returns the client configuration for the API server: from the kubeconfig,
// with --master in place of its address, or from within the cluster.
func apiConfig(c *config.Config) (*rest.Config, error) {
	file := c.ClientConnection.Kubeconfig
	if c.Master != "" {
		if err := checkServer("--master", c.Master); err != nil {
			return nil, err
		}
	}
	build := rest.InClusterConfig
	switch {
	case file != "":
		build = func() (*rest.Config, error) { return readKubeconfig(file, c.Master) }
	case c.Master != "":
		build = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags(c.Master, "") }
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
	to.QPS, to.Burst = c.ClientConnection.QPS, int(c.ClientConnection.Burst)
	to.ContentType = c.ClientConnection.ContentType
	to.AcceptContentTypes = c.ClientConnection.AcceptContentTypes
	to.UserAgent = "kube-proxy/" + buildInfo().Version
	return to, nil
}
