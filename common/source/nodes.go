// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// fewNodes is how many Nodes are read by a request for each. For more, all are listed: a
// Node is some 10 kB, and requests are rationed.
const fewNodes = 8

// kindAddresses is what the pacer knows the requests of Nodes as, for which nothing else waits.
const kindAddresses = "addresses"

// Nodes reads the Nodes of these names, and calls found with the internal addresses of each
// that exists, and perhaps of others. The API server answers from its memory. A list is
// read as a stream of JSON, so that only one Node is in memory at a time.
func (a *APIServer) Nodes(ctx context.Context, names []string, found func(name string, all []netip.Addr)) error {
	if err := a.start(); err != nil {
		return err
	}
	options := []metav1.ListOptions{{ResourceVersion: "0"}}
	if len(names) <= fewNodes {
		options = nil
		for _, n := range names {
			options = append(options, metav1.ListOptions{ResourceVersion: "0", FieldSelector: fields.OneTermEqualSelector("metadata.name", n).String()})
		}
	}
	for _, o := range options {
		if err := a.listNodes(ctx, o, found); err != nil {
			return fmt.Errorf("read Nodes at the API server: %w", err)
		}
	}
	return nil
}

func (a *APIServer) listNodes(ctx context.Context, o metav1.ListOptions, found func(name string, all []netip.Addr)) error {
	a.pace.wait(ctx, kindAddresses)
	ctx = WithRetryAfter(ctx)
	from := requests{client: a.inUse().core, kind: kindNodes, selects: func(*metav1.ListOptions) {}}
	body, err := from.request(o).SetHeader("Accept", "application/json").Stream(ctx)
	a.pace.bar(kindAddresses, RetryAfter(ctx, err))
	if err != nil {
		return err
	}
	defer body.Close()
	return readNodes(body, found)
}

// readNodes reads a NodeList.
func readNodes(from io.Reader, found func(name string, all []netip.Addr)) error {
	d := json.NewDecoder(from)
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		field, err := d.Token()
		if err != nil {
			return err
		}
		var value any
		switch field {
		case "items":
			err = readItems(d, found)
		case "kind":
			if err = d.Decode(&value); value != "NodeList" && err == nil {
				err = fmt.Errorf("the answer is a %.40v, want a NodeList", value)
			}
		default:
			err = d.Decode(&value)
		}
		if err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func readItems(d *json.Decoder, found func(name string, all []netip.Addr)) error {
	if start, err := d.Token(); err != nil || start == nil { // null
		return err
	}
	for d.More() {
		var n struct {
			Metadata struct{ Name string }
			Status   struct{ Addresses []corev1.NodeAddress }
		}
		if err := d.Decode(&n); err != nil {
			return err
		}
		found(n.Metadata.Name, internal(n.Status.Addresses))
	}
	_, err := d.Token()
	return err
}

// internal returns the addresses by which nodes of a cluster reach each other.
func internal(all []corev1.NodeAddress) []netip.Addr {
	var found []netip.Addr
	for _, a := range all {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			found = append(found, ip.Unmap())
		}
	}
	return found
}

// Nodes is APIServer.Nodes for the Nodes in the files.
func (m *Manifests) Nodes(_ context.Context, names []string, found func(name string, all []netip.Addr)) error {
	m.eachNode(func(n *corev1.Node) bool {
		if name := normalizeNode(n.Name); slices.Contains(names, name) {
			found(name, internal(n.Status.Addresses))
		}
		return true
	})
	return nil
}
