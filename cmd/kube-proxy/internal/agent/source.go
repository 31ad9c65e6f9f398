// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"k8s.io/klog/v2"

	filewatch "kubeproxy/common/files"
	"kubeproxy/common/kubeclient"
	"kubeproxy/common/report"
	"kubeproxy/common/source"
	"kubeproxy/config"
)

// newSource returns the source of Services: manifests if any are named, else the API
// server.
func (o *Options) newSource(version string, c *config.Config, node string, sources *report.Sources, log klog.Logger) (source.Source, error) {
	if len(o.Manifests) > 0 {
		if c.ClientConnection.Kubeconfig != "" || c.Master != "" {
			log.Info("The API server is not read, because --manifests is given")
		}
		log.Info("Services come from manifests", "manifests", o.Manifests)
		return newManifests(o.Manifests, node, sources, log), nil
	}
	client := KubeClient(c, version)
	known := filewatch.NewContent(client.Read()) // before Config, so that a change in between is seen
	to, err := client.Config()
	if err != nil {
		return nil, err
	}
	log.Info("Services come from the API server", "server", to.Host)
	if since, is := kubeclient.Expired(to, time.Now()); is {
		log.Info("Warning: the client certificate has expired; the API server will refuse it", "kubeconfig", c.ClientConnection.Kubeconfig, "since", since.Format(time.RFC3339), "remedy", "renew the user's client certificate")
	}
	outages := kubeclient.NewOutages(log.WithValues("server", to.Host), client.Remedy)
	return &apiSource{client: client, outages: outages, key: known.Key, server: to.Host, APIServer: &source.APIServer{
		Config: to, NodeName: node, ProxyName: c.ProxyName,
		Contact: func(kind string) {
			sources.RecordContact(kind)
			outages.Recovered(kind)
		},
		WatchTimedOut: func(kind string) {
			sources.WatchTimedOut(kind)
			log.V(2).Info("A watch was silent for too long; the kind is listed again", "kind", kind)
		},
		Restored: func(kind, before, now string) {
			sources.Restored(kind)
			log.Info("Warning: the resource version went backwards, as after a restore of etcd from a backup; all kinds are listed again", "kind", kind, "before", before, "now", now)
		},
		Report: func(err error) {
			sources.RecordError(err)
			outages.RecordError(err)
		},
	}}, nil
}

// newSources returns the state of the sources that o selects.
func newSources(o *Options) *report.Sources {
	if len(o.Manifests) > 0 {
		return report.NewManifestSources()
	}
	return report.NewSources()
}

// KubeClient returns the settings of the connection to the API server.
func KubeClient(c *config.Config, version string) *kubeclient.Options {
	return &kubeclient.Options{Connection: c.ClientConnection, Master: c.Master, UserAgent: "kube-proxy/" + version}
}

// newManifests returns the source that reads paths.
func newManifests(paths []string, node string, sources *report.Sources, log klog.Logger) *source.Manifests {
	return &source.Manifests{
		Paths:    paths,
		NodeName: node,
		Report: func(f source.Fault) {
			failingSince := sources.RecordFault(report.ManifestSource, f)
			if f.Err == nil {
				log.Info("A manifest can be used again, or is gone", "object", f.Object, "failedFor", time.Since(failingSince).Round(time.Millisecond))
				return
			}
			log.Error(f.Err, "A manifest cannot be used", "object", f.Object)
		},
		Contact: sources.ManifestsRead,
		Note:    func(s string) { log.Info("Note on the manifests: " + s) },
	}
}
