// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	baseconfig "k8s.io/component-base/config/v1alpha1"

	"kubeproxy/common/explain"
	"kubeproxy/common/kubeclient"
	"kubeproxy/common/printable"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/statusview"
)

// Client asks a running proxy what happens to connections.
type Client struct {
	Server  string // HOST:PORT of its metrics server
	Version string // of this program
	// Kubeconfig is the file that the user names. Without one, it is that of kubectl: the
	// one in $KUBECONFIG, else ~/.kube/config, else the account of the pod.
	Kubeconfig string
	// PodAddresses and PodNode are those of the pod of the question, if the user named them.
	// Then nobody looks it up.
	PodAddresses []netip.Addr
	PodNode      string
}

// Explain asks. The proxy knows the pods that EndpointSlices refer to. Others are looked
// up with the rights of the user.
func (c Client) Explain(ctx context.Context, q explain.Query) (*explain.Explanation, error) {
	question := url.Values{"source": {q.Source}, "destination": {q.Destination}, "interface": {q.Interface}}
	answer, err := c.ask(ctx, question)
	unknown, is := errors.AsType[*unknownPodError](err)
	if !is {
		return answer, err
	}
	if err := c.namePod(ctx, q.Source, question); err != nil {
		return nil, fmt.Errorf("%w; %s", unknown, printable.Error(err))
	}
	return c.ask(ctx, question)
}

// unknownPodError is the answer of a proxy that does not know the pod.
type unknownPodError struct{ text string }

func (e *unknownPodError) Error() string { return e.text }

func (c Client) ask(ctx context.Context, question url.Values) (*explain.Explanation, error) {
	q := statusview.Query{Server: c.Server, Version: c.Version}
	body, accepted, err := q.Fetch(ctx, "/explain?"+question.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct {
		explain.Explanation
		explain.Refusal
	}
	switch err := json.Unmarshal(body, &answer); {
	case err != nil:
		return nil, fmt.Errorf("%s answers something else than an explanation: %w", c.Server, err)
	case answer.UnknownPod:
		return nil, &unknownPodError{printable.Text(answer.Error)}
	case !accepted:
		return nil, errors.New(printable.Text(answer.Error))
	}
	return &answer.Explanation, nil
}

// namePod adds the addresses of the pod that source names to the question.
func (c Client) namePod(ctx context.Context, source string, question url.Values) error {
	_, name, _ := strings.Cut(source, "/")
	namespace, name, _ := strings.Cut(name, "/")
	addrs, node := c.PodAddresses, c.PodNode
	if len(addrs) == 0 {
		var err error
		if addrs, node, err = c.pod(ctx, types.NamespacedName{Namespace: namespace, Name: name}); err != nil {
			return err
		}
	}
	for _, x := range addrs {
		question.Add("podAddress", x.String())
	}
	question.Set("podNode", node)
	return nil
}

// pod returns the addresses of a pod and its node. The error says which right the user
// lacks.
func (c Client) pod(ctx context.Context, id types.NamespacedName) ([]netip.Addr, string, error) {
	to, err := c.apiServer()
	if err != nil {
		return nil, "", err
	}
	pod, err := source.Lookup{Config: to}.Pod(ctx, id)
	switch {
	case apierrors.IsNotFound(err):
		return nil, "", fmt.Errorf("the API server %s has no pod %s", to.Host, id)
	case apierrors.IsForbidden(err):
		return nil, "", fmt.Errorf("%w: want the right to get pods in namespace %s, or --kubeconfig FILE of somebody who has it", err, id.Namespace)
	case apierrors.IsUnauthorized(err):
		return nil, "", fmt.Errorf("the API server %s does not accept the credentials: %w", to.Host, err)
	case err != nil:
		return nil, "", fmt.Errorf("ask the API server %s for the pod: %w", to.Host, err)
	}
	var addrs []netip.Addr
	for _, x := range pod.Status.PodIPs {
		if addr, err := service.ParseAddr(x.IP); err == nil {
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == 0 {
		return nil, "", fmt.Errorf("pod %s has no address yet: its phase is %s", id, pod.Status.Phase)
	}
	return addrs, pod.Spec.NodeName, nil
}

func (c Client) apiServer() (*rest.Config, error) {
	agent := "kube-proxy/" + c.Version
	if c.Kubeconfig != "" {
		o := kubeclient.Options{Connection: baseconfig.ClientConnectionConfiguration{Kubeconfig: c.Kubeconfig}, UserAgent: agent}
		return o.Config()
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	to, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("there is no kubeconfig to ask the API server with: want --kubeconfig FILE, $KUBECONFIG or ~/.kube/config")
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of kubectl: %w", err)
	}
	to.UserAgent = agent
	return to, nil
}
