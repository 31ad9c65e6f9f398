// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	baseconfig "k8s.io/component-base/config/v1alpha1"

	"kubeproxy/common/ipaddr"
	"kubeproxy/common/kubeclient"
	"kubeproxy/common/source"
)

// pod returns the addresses of a pod and its node. The error says which right the user
// lacks.
func (a Client) pod(ctx context.Context, id types.NamespacedName) ([]netip.Addr, string, error) {
	to, err := a.apiServer()
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
		if addr, err := ipaddr.Parse(x.IP); err == nil {
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == 0 {
		return nil, "", fmt.Errorf("pod %s has no address yet: its phase is %s", id, pod.Status.Phase)
	}
	return addrs, pod.Spec.NodeName, nil
}

func (a Client) apiServer() (*rest.Config, error) {
	agent := "kube-proxy/" + a.Version
	if a.Kubeconfig != "" {
		o := kubeclient.Options{Connection: baseconfig.ClientConnectionConfiguration{Kubeconfig: a.Kubeconfig}, UserAgent: agent}
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
