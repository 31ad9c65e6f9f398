// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
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
