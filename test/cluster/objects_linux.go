// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"kubeproxy/test/authority"
)

// atOnce is how many requests Set and Delete have under way. More does not make them
// faster.
const atOnce = 16

// Set creates or replaces each object in the API server, status included, and then writes
// the server's version into the object. The objects are *corev1.Namespace,
// *corev1.Service, *corev1.Node and *discoveryv1.EndpointSlice. They are written in
// parallel, so a Namespace needs a call before that of its objects.
func (c *Cluster) Set(ctx context.Context, objects ...metav1.Object) error {
	return c.each(ctx, objects, func(ctx context.Context, o metav1.Object) error {
		switch o := o.(type) {
		case *corev1.Namespace:
			return put(ctx, c.Client.CoreV1().Namespaces(), o)
		case *corev1.Service:
			return setService(ctx, c.Client, o)
		case *corev1.Node:
			return setNode(ctx, c.Client, o)
		case *discoveryv1.EndpointSlice:
			return put(ctx, c.Client.DiscoveryV1().EndpointSlices(o.Namespace), o)
		default:
			return fmt.Errorf("unknown type %T", o)
		}
	})
}

// Delete deletes objects of the types that Set accepts, except Namespaces, which only a
// controller could empty. A missing object is not an error.
func (c *Cluster) Delete(ctx context.Context, objects ...metav1.Object) error {
	return c.each(ctx, objects, func(ctx context.Context, o metav1.Object) error {
		var err error
		switch o := o.(type) {
		case *corev1.Service:
			err = c.Client.CoreV1().Services(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{})
		case *corev1.Node:
			err = c.Client.CoreV1().Nodes().Delete(ctx, o.Name, metav1.DeleteOptions{})
		case *discoveryv1.EndpointSlice:
			err = c.Client.DiscoveryV1().EndpointSlices(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{})
		default:
			err = fmt.Errorf("unknown type %T", o)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// each continues after an error, and returns all errors.
func (c *Cluster) each(ctx context.Context, objects []metav1.Object, do func(context.Context, metav1.Object) error) error {
	errs := make([]error, len(objects))
	var workers errgroup.Group
	workers.SetLimit(atOnce)
	for i, o := range objects {
		workers.Go(func() error {
			if err := do(ctx, o); err != nil {
				errs[i] = fmt.Errorf("%T %s/%s: %w", o, o.GetNamespace(), o.GetName(), err)
			}
			return errs[i]
		})
	}
	_ = workers.Wait() // its error is the first of errs
	return errors.Join(errs...)
}

// setService writes the status in a separate request, as the API server requires.
func setService(ctx context.Context, client kubernetes.Interface, s *corev1.Service) error {
	services, status := client.CoreV1().Services(s.Namespace), s.Status
	if err := put(ctx, services, s); err != nil || reflect.DeepEqual(status, s.Status) {
		return err
	}
	s.Status = status
	stored, err := services.UpdateStatus(ctx, s, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	*s = *stored
	return nil
}

func setNode(ctx context.Context, client kubernetes.Interface, n *corev1.Node) error {
	nodes, status := client.CoreV1().Nodes(), n.Status
	if err := put(ctx, nodes, n); err != nil || reflect.DeepEqual(status, n.Status) {
		return err
	}
	n.Status = status
	stored, err := nodes.UpdateStatus(ctx, n, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	*n = *stored
	return nil
}

// object is a pointer to a T, which is a Kubernetes object.
type object[T any] interface {
	*T
	metav1.Object
}

// store is the common part of the clients of all types.
type store[P any] interface {
	Create(context.Context, P, metav1.CreateOptions) (P, error)
	Update(context.Context, P, metav1.UpdateOptions) (P, error)
}

// put replaces o or, if it does not exist, creates it. With a creation first, the API
// server would allocate a ClusterIP only to release it again. If others write the same
// object meanwhile, the last write wins.
func put[T any, P object[T]](ctx context.Context, s store[P], o P) error {
	fresh := new(T)
	*fresh = *o
	P(fresh).SetResourceVersion("") // replace any version
	P(fresh).SetUID("")
	stored, err := s.Update(ctx, fresh, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		stored, err = s.Create(ctx, fresh, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	*o = *stored
	return nil
}

// fieldManager is the field manager of Apply.
const fieldManager = "kubeproxy-test"

// Apply applies the YAML documents of a manifest in order, as kubectl apply --server-side
// --validate=strict does: an unknown or duplicate field is an error. Namespaced objects
// without a namespace go to the default one. It stops at the first error, as later
// documents may need earlier ones.
func (c *Cluster) Apply(ctx context.Context, manifest []byte) error { return c.applyAll(ctx, manifest) }

// Try has the API server check a manifest as Apply does, and changes nothing.
func (c *Cluster) Try(ctx context.Context, manifest []byte) error {
	return c.applyAll(ctx, manifest, metav1.DryRunAll)
}

// applyAll applies the documents in order, dry if dryRun says so.
func (c *Cluster) applyAll(ctx context.Context, manifest []byte, dryRun ...string) error {
	documents := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for n := 1; ; n++ {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = c.apply(ctx, text, dryRun)
		}
		if err != nil {
			return fmt.Errorf("apply document %d: %w", n, err)
		}
	}
}

func (c *Cluster) apply(ctx context.Context, document []byte, dryRun []string) error {
	var o *metav1.PartialObjectMetadata
	if err := yaml.Unmarshal(document, &o); err != nil {
		return err
	}
	if o == nil { // nothing but comments
		return nil
	}
	path, err := c.resource(o)
	if err != nil {
		return err
	}
	// Strict validation needs the original text, as duplicates do not survive parsing.
	request := c.Client.Discovery().RESTClient().Patch(types.ApplyYAMLPatchType).AbsPath(path...).
		Param("fieldManager", fieldManager).Param("fieldValidation", "Strict").
		SetHeader("Accept", "application/json").Body(document)
	for _, d := range dryRun {
		request.Param("dryRun", d)
	}
	if _, err := request.DoRaw(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", o.Kind, o.Name, err)
	}
	return nil
}

// resource returns the elements of the object's path, from the discovery of the API
// server.
func (c *Cluster) resource(o *metav1.PartialObjectMetadata) ([]string, error) {
	version, err := schema.ParseGroupVersion(o.APIVersion)
	if err != nil {
		return nil, err
	}
	kinds, err := c.Client.Discovery().ServerResourcesForGroupVersion(o.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("find kinds of %q: %w", o.APIVersion, err)
	}
	path := []string{"apis", version.Group, version.Version}
	if version.Group == "" {
		path = []string{"api", version.Version}
	}
	for _, k := range kinds.APIResources {
		if k.Kind != o.Kind || strings.Contains(k.Name, "/") { // a subresource
			continue
		}
		if k.Namespaced {
			path = append(path, "namespaces", cmp.Or(o.Namespace, metav1.NamespaceDefault))
		}
		return append(path, k.Name, o.Name), nil
	}
	return nil, fmt.Errorf("kind %q of %q: the API server has none", o.Kind, o.APIVersion)
}

// Login is the identity of a client, and its server. The zero Login is an
// administrator's.
type Login struct {
	// Token, if set, is the client's bearer token.
	Token string
	// User and Groups, if set, are in the client's certificate, which is valid until
	// Until, by default for some days.
	User   string
	Groups []string
	Until  time.Time
	// Server is the URL of the server, by default Cluster.Server.
	Server string
}

// Kubeconfig writes a kubeconfig with embedded credentials, and returns its path.
func (c *Cluster) Kubeconfig(l Login) (string, error) {
	who := clientcmdapi.NewAuthInfo()
	switch {
	case l.User != "":
		if err := c.certifyUser(who, l); err != nil {
			return "", err
		}
	default:
		who.Token = cmp.Or(l.Token, c.token)
	}
	where := clientcmdapi.NewCluster()
	where.Server, where.CertificateAuthorityData = cmp.Or(l.Server, c.Server), c.ca.PEM
	config := clientcmdapi.NewConfig()
	config.Clusters["test"], config.AuthInfos["user"] = where, who
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "user"}
	config.CurrentContext = "test"
	path := c.path("kubeconfig-" + rand.Text())
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	return path, nil
}

func (c *Cluster) certifyUser(who *clientcmdapi.AuthInfo, l Login) error {
	key, err := authority.NewKey()
	if err != nil {
		return fmt.Errorf("make a key for %s: %w", l.User, err)
	}
	if who.ClientKeyData, err = authority.KeyPEM(key); err != nil {
		return err
	}
	who.ClientCertificateData, err = c.ca.Issue(authority.Subject{Name: l.User, Groups: l.Groups, Until: l.Until}, key)
	return err
}
