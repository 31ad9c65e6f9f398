// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	filewatch "kubeproxy/common/files"
	"kubeproxy/common/kubeclient"
	"kubeproxy/common/report"
	"kubeproxy/common/source"
	"kubeproxy/config"
)

// newSource returns the source of Services: manifests if any are named, else the API server.
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

// modeAnnotation selected a Node's mode before configuration files existed.
const modeAnnotation = "net.experimental.kubernetes.io/proxy-mode"

// nodeModeTimeout bounds how long the start waits for the Node. Without an API server there
// is no Service to forward, but health and metrics must be served.
const nodeModeTimeout = 2 * time.Second

// nodeReader is a source that can read the Node before it runs.
type nodeReader interface {
	ReadNode(ctx context.Context) (*corev1.Node, error)
}

// nodeMode returns which of modes the Node asks for, if any and it can be read, and logs it.
func nodeMode(ctx context.Context, from nodeReader, modes []v1alpha1.ProxyMode) v1alpha1.ProxyMode {
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, nodeModeTimeout)
	defer cancel()
	node, err := from.ReadNode(ctx)
	if err != nil {
		log.Info("No mode is configured, and the annotation of the Node cannot be read now; going on without it", "annotation", modeAnnotation, "err", err.Error())
		return ""
	}
	if node == nil {
		return ""
	}
	mode := modeIn(log, modes, node)
	if mode != "" {
		log.Info("The Node asks for a mode, and none is configured", "annotation", modeAnnotation, "mode", mode)
	}
	return mode
}

// modeIn returns the mode in n's annotation, if it is one of modes, and logs others.
func modeIn(log klog.Logger, modes []v1alpha1.ProxyMode, n *corev1.Node) v1alpha1.ProxyMode {
	mode := v1alpha1.ProxyMode(strings.TrimSpace(n.Annotations[modeAnnotation]))
	if mode != "" && !slices.Contains(modes, mode) {
		log.Info("Warning: the Node asks for a mode that does not exist, which is ignored", "annotation", modeAnnotation, "mode", mode, "want", modes)
		return ""
	}
	return mode
}
