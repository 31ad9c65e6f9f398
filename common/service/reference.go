// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Reference is a Service as a user names it, and perhaps one of its ports.
type Reference struct {
	Namespace string // "" for any
	Name      string
	Port      string // name or number, "" for any
	Protocol  string // in lower case, "" for any
}

// ReferenceForms are what ParseReference takes.
const ReferenceForms = "NAME, NAMESPACE/NAME or svc/NAMESPACE/NAME, for one port with :PORT or :PORT/PROTOCOL"

// typeNames may begin a Reference, as kubectl takes them.
var typeNames = []string{"svc", "service", "services"}

// ParseReference reads [svc/][NAMESPACE/]NAME[:PORT][/PROTOCOL]. namespace is that of a name
// alone, "" for any.
func ParseReference(text, namespace string) (Reference, error) {
	r := Reference{Namespace: namespace}
	name, port, hasPort := strings.Cut(text, ":")
	parts := strings.Split(name, "/")
	if slices.Contains(typeNames, parts[0]) && len(parts) > 1 {
		parts = parts[1:]
	}
	switch {
	case hasPort:
		r.Port, r.Protocol, _ = strings.Cut(port, "/")
	case len(parts) == 3:
		r.Protocol, parts = parts[2], parts[:2]
	}
	r.Name = parts[len(parts)-1]
	if len(parts) == 2 {
		r.Namespace = parts[0]
	}
	r.Protocol = strings.ToLower(r.Protocol)
	known := r.Protocol == "" && !strings.HasSuffix(text, "/") || slices.Contains([]string{TCP.String(), UDP.String(), SCTP.String()}, r.Protocol)
	switch {
	case len(parts) > 2, slices.Contains(parts, ""), hasPort && !isPort(r.Port), !known:
		return r, fmt.Errorf("service %.300q: want %s", text, ReferenceForms)
	case namespace != "" && r.Namespace != namespace:
		return r, fmt.Errorf("service %.300q is not in the namespace of --namespace, %q", text, namespace)
	}
	return r, nil
}

func isPort(text string) bool {
	n, err := strconv.Atoi(text)
	return text != "" && !strings.ContainsAny(text, ":/") && (err != nil || n > 0 && n < 1<<16)
}

// String returns the form with the type, in which no part can be taken for another.
func (r Reference) String() string {
	text := "svc/" + r.Namespace + "/" + r.Name
	if r.Port != "" {
		text += ":" + r.Port
	}
	if r.Protocol != "" {
		text += "/" + r.Protocol
	}
	return text
}
