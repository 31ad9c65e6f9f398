// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package events

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"kubeproxy/common/printable"
	"kubeproxy/common/retryafter"
)

// component is the source of the Events, under the name that people search for.
const component = "kube-proxy"

// maxMessage is below the limit of newer versions of the Event API: kubernetes:
// pkg/apis/core/validation/events.go.
const maxMessage = 1000

// series is an Event in the API server whose count can be increased.
type series struct {
	name  string
	count int32
	last  time.Time
}

// writer is the required part of the API.
type writer interface {
	create(ctx context.Context, e *corev1.Event) error
	patch(ctx context.Context, namespace, name string, change []byte) error
}

// write adds n to its series, or creates a new Event.
func (r *Recorder) write(ctx context.Context, n *pendingEvent) error {
	ctx, cancel := context.WithTimeout(retryafter.NewContext(ctx), 10*time.Second)
	defer cancel()
	err := r.attempt(ctx, n)
	n.asked = retryafter.Asked(ctx, err)
	return err
}

func (r *Recorder) attempt(ctx context.Context, n *pendingEvent) error {
	namespace := cmp.Or(n.object.Namespace, metav1.NamespaceDefault)
	if n.series.name != "" && n.now.Sub(n.series.last) < retention {
		err := r.inUse().patch(ctx, namespace, n.series.name, n.countPatch())
		if err == nil {
			n.series.count, n.series.last = n.series.count+1, n.now
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	e := r.event(n, namespace)
	err := r.inUse().create(ctx, e)
	if n.topic.Scope == Cluster {
		n.writtenByPeer = apierrors.IsAlreadyExists(err)
		if n.writtenByPeer {
			return nil
		}
		return err
	}
	if err == nil {
		n.series = series{e.Name, 1, n.now}
	}
	return err
}

// countPatch returns a patch that increases the count.
func (n *pendingEvent) countPatch() []byte {
	text, err := json.Marshal(map[string]any{
		"count": n.series.count + 1, "lastTimestamp": metav1.NewTime(n.now), "message": oneLine(n.message),
	})
	if err != nil {
		panic(err) // numbers and text can always be encoded
	}
	return text
}

func (r *Recorder) event(n *pendingEvent, namespace string) *corev1.Event {
	at := metav1.NewTime(n.now)
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: eventName(n.object, rand.Uint64())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: n.object.Kind, Namespace: n.object.Namespace, Name: n.object.Name, UID: n.object.UID,
		},
		Type: corev1.EventTypeNormal, Reason: n.reason(), Message: oneLine(n.message),
		Source: corev1.EventSource{Component: component, Host: r.options.Node}, Count: 1,
		FirstTimestamp: at, LastTimestamp: at,
		ReportingController: component, ReportingInstance: r.options.Node,
	}
	if n.failed && !n.topic.Informational {
		e.Type = corev1.EventTypeWarning
	}
	if n.topic.Scope == Cluster {
		e.Name, e.Source.Host = sharedName(n), ""
	}
	return e
}

// maxName is the limit of the names of most objects, also of Nodes:
// https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
const maxName = 253

// eventName returns the name of an Event about an object. The number distinguishes it from
// others.
func eventName(o Object, number uint64) string {
	suffix := fmt.Sprintf(".%016x", number)
	return strings.TrimRight(o.Name[:min(len(o.Name), maxName-len(suffix))], "-.") + suffix
}

// sharedName returns a name that is equal on every node for the same Event within an
// hour.
func sharedName(n *pendingEvent) string {
	h := fnv.New64a()
	for _, part := range []string{string(n.object.UID), n.object.Kind, n.reason(), n.message, n.now.UTC().Format("2006010215")} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return eventName(n.object, h.Sum64())
}

// oneLine returns a message on one line of printable text, and cuts it between two
// characters. Joined errors have a line each.
func oneLine(s string) string {
	s = printable.Text(strings.ReplaceAll(s, "\n", "; "))
	if len(s) <= maxMessage {
		return s
	}
	end := maxMessage - len(" ...")
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + " ..."
}

// client is the writer for an API server.
type client struct{ rest *rest.RESTClient }

func newClient(to *rest.Config) (client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return client{}, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := rest.CopyConfig(to)
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c.QPS, c.RateLimiter, c.WarningHandler = -1, nil, rest.NoWarnings{}
	retryafter.Wrap(c)
	api, err := rest.RESTClientFor(c)
	return client{api}, err
}

func (c client) create(ctx context.Context, e *corev1.Event) error {
	return c.rest.Post().Namespace(e.Namespace).Resource("events").Body(e).MaxRetries(0).Do(ctx).Error()
}

func (c client) patch(ctx context.Context, namespace, name string, change []byte) error {
	return c.rest.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("events").Name(name).Body(change).MaxRetries(0).Do(ctx).Error()
}
