// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"fmt"
	"net/http"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
)

// ProxyInfo is the part of an answer about the proxy itself.
type ProxyInfo struct {
	Mode    string    `json:"mode"`
	Node    string    `json:"node"`
	Version string    `json:"version"`
	Started time.Time `json:"started"` // of the process
	// Generation is that of the desired snapshot. Health has the one in force, by family.
	Generation uint64        `json:"generation"`
	Health     health.Report `json:"health"`
	// Accelerated is how many connections sockets made without translation, by family. It
	// is empty without socket acceleration.
	Accelerated map[string]uint64 `json:"accelerated,omitempty"`
}

// Response is the body of /services and the paths below it.
type Response struct {
	ProxyInfo
	Services []Service `json:"services"`
}

type problem struct {
	Error string `json:"error"`
}

// Handler serves /services, /services/NAMESPACE and /services/NAMESPACE/NAME. An unknown
// Service is answered with 404 and the likely reason. about returns everything except the
// generation.
func (b *Store) Handler(about func() ProxyInfo) http.Handler {
	mux := http.NewServeMux()
	serve := func(w http.ResponseWriter, q *http.Request) {
		namespace, name := q.PathValue("namespace"), q.PathValue("name")
		found := b.find(func(ns, n string) bool {
			return (namespace == "" || ns == namespace) && (name == "" || n == name)
		})
		if name != "" && len(found) == 0 {
			text := unknownText(namespace, name)
			if b.wanted() == nil {
				text = "no Service is known yet: the existing objects have not all been read"
			}
			health.ReplyJSON(w, http.StatusNotFound, problem{text})
			return
		}
		if name != "" && b.Endpoints != nil {
			b.addEndpoints(found)
		}
		a := Response{about(), found}
		if s := b.wanted(); s != nil {
			a.Generation = s.Generation
		}
		health.ReplyJSON(w, http.StatusOK, a)
	}
	mux.HandleFunc("GET /services", serve)
	mux.HandleFunc("GET /services/{$}", serve)
	mux.HandleFunc("GET /services/{namespace}", serve)
	mux.HandleFunc("GET /services/{namespace}/{name}", serve)
	return mux
}

// addEndpoints fills the lists of endpoints.
func (b *Store) addEndpoints(all []Service) {
	for i := range all {
		for j := range all[i].Ports {
			p := &all[i].Ports[j]
			p.EndpointList = b.Endpoints(p.family, service.PortName{Namespace: all[i].Namespace, Name: all[i].Name, Port: p.Port, Protocol: p.protocol})
		}
	}
}

func unknownText(namespace, name string) string {
	return fmt.Sprintf("service %s/%s is not known here: there is none, or it is headless, of type ExternalName, "+
		"without ports, or another proxy's by the label service.kubernetes.io/service-proxy-name", namespace, name)
}
