// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/netlab"
)

// apiServer is the part of an API server that a proxy needs: lists, and watches that
// deliver changed EndpointSlices. It keeps no history and ignores selectors.
type apiServer struct {
	lists map[string]list // by path

	mu       sync.Mutex
	version  int // of the latest object
	watchers map[chan []byte]string
	// delivered is when the last list with objects was sent, and the client's CPU time at
	// that moment.
	delivered time.Time
	deliverer func() time.Duration
	cpu       time.Duration
}

// list is a kind of object and the objects that exist at the start.
type list struct {
	version, kind string
	n             int
	item          func(i int) any
}

const (
	servicesPath = "/api/v1/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/endpointslices"
	nodesPath    = "/api/v1/nodes"
	cidrsPath    = "/apis/networking.k8s.io/v1/servicecidrs"
)

// newAPIServer returns an apiServer with a number of Services. cpu returns the CPU time
// of the client.
func newAPIServer(services int, cpu func() time.Duration) *apiServer {
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: ownNode, ResourceVersion: "1"},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, // netlab's node-a
			{Type: corev1.NodeHostName, Address: netlab.NodeName},
		}},
	}
	all := numbers(perService)
	return &apiServer{
		version: 1, watchers: map[chan []byte]string{}, deliverer: cpu,
		lists: map[string]list{
			servicesPath: {"v1", "ServiceList", services, func(i int) any { return newService(i) }},
			slicesPath:   {"discovery.k8s.io/v1", "EndpointSliceList", services, func(i int) any { return newSlice(i, all) }},
			nodesPath:    {"v1", "NodeList", 1, func(int) any { return node }},
			cidrsPath:    {"networking.k8s.io/v1", "ServiceCIDRList", 0, nil},
		},
	}
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	q := r.URL.Query()
	watch, _ := strconv.ParseBool(q.Get("watch"))
	l, found := s.lists[r.URL.Path]
	switch {
	case r.Method == http.MethodPost: // an event
		w.WriteHeader(http.StatusCreated)
		// The response does not matter, so an error does not either.
		_, _ = io.Copy(w, r.Body)
	case !found && r.URL.Path == nodesPath+"/"+ownNode:
		_ = json.NewEncoder(w).Encode(s.lists[nodesPath].item(0))
	case !found:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case watch && q.Get("sendInitialEvents") == "true":
		// Clients then fall back to lists, as with old servers.
		refuse(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	case watch:
		s.watch(w, r)
	default:
		s.list(w, l)
		if r.URL.Path == servicesPath || r.URL.Path == slicesPath {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.delivered, s.cpu = time.Now(), s.deliverer()
		}
	}
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: reason, Code: int32(code),
	})
}

func (s *apiServer) list(w http.ResponseWriter, l list) {
	fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"1"},"items":[`, l.kind, l.version)
	encoder := json.NewEncoder(w)
	for i := range l.n {
		if i > 0 {
			fmt.Fprint(w, ",")
		}
		if encoder.Encode(l.item(i)) != nil {
			return // the client has gone
		}
	}
	fmt.Fprint(w, "]}")
	_ = http.NewResponseController(w).Flush()
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan []byte, manyServices) // room for all that ever arrive at once
	s.mu.Lock()
	s.watchers[events] = r.URL.Path
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, events)
	}()
	control := http.NewResponseController(w)
	for {
		if control.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			if _, err := w.Write(e); err != nil {
				return
			}
		}
	}
}

// update encodes changed EndpointSlices and returns a function that sends them to their
// watches.
func (s *apiServer) update(changed ...*discoveryv1.EndpointSlice) (send func(), err error) {
	var events [][]byte
	for _, c := range changed {
		s.version++
		c.ResourceVersion = strconv.Itoa(s.version)
		e, err := json.Marshal(map[string]any{"type": "MODIFIED", "object": c})
		if err != nil {
			return nil, err
		}
		events = append(events, append(e, '\n'))
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for w, path := range s.watchers {
			for i := 0; path == slicesPath && i < len(events); i++ {
				w <- events[i]
			}
		}
	}, nil
}

// whenDelivered returns when both lists were sent, and the client's CPU time then; false
// before that.
func (s *apiServer) whenDelivered() (time.Time, time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	watched := map[string]bool{} // a watch follows its list
	for _, path := range s.watchers {
		watched[path] = true
	}
	ok := !s.delivered.IsZero() && watched[servicesPath] && watched[slicesPath]
	return s.delivered, s.cpu, ok
}

// forget makes whenDelivered wait for the next client.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delivered = time.Time{}
	clear(s.watchers)
}
