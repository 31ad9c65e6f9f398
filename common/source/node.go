// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"kubeproxy/common/files"
	"kubeproxy/common/retryafter"
)

// ReadNode requests the Node once, for settings that are needed before Run. It returns
// nil if there is none of that name. It needs no permissions beyond those of Run.
func (a *APIServer) ReadNode(ctx context.Context) (*corev1.Node, error) {
	client, err := newClient(a.Config, corev1.SchemeGroupVersion, "/api", a.limits())
	if err != nil {
		return nil, err
	}
	var found corev1.NodeList
	o := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", a.NodeName).String()}
	ctx = retryafter.NewContext(ctx)
	err = client.Get().Resource(kindNodes).VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0).Do(ctx).Into(&found)
	a.pace.bar(kindNodes, retryafter.Asked(ctx, err))
	if err != nil {
		return nil, fmt.Errorf("read the Node %s at the API server: %w", a.NodeName, err)
	}
	if len(found.Items) == 0 {
		return nil, nil
	}
	return &found.Items[0], nil
}

// ReadNode reads the files once for the Node, for settings that are needed before Run. It
// returns nil if there is none of that name. Run reports problems with the files.
func (m *Manifests) ReadNode(context.Context) (*corev1.Node, error) {
	mentions := regexp.MustCompile(`\bNode\b`) // few files do, and parsing the others takes time
	d := decoder{noted: map[string]bool{}}
	for _, path := range m.Paths {
		var dir listing
		dir.list(path)
		for _, name := range dir.files {
			content, _, err := files.Read(name, maxFile)
			content = files.Text(content)
			if err != nil || !mentions.Match(content) {
				continue
			}
			if n := m.ownNode(d.decode(content).objects); n != nil {
				return n, nil
			}
		}
	}
	return nil, nil
}

// ownNode returns the own Node, or nil if it is not in all.
func (m *Manifests) ownNode(all []object) *corev1.Node {
	for _, o := range all {
		if n, is := o.value.(*corev1.Node); is && normalizeNode(n.Name) == normalizeNode(m.NodeName) {
			return n
		}
	}
	return nil
}
