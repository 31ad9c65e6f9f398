// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/document"
	"kubeproxy/common/support"
	"kubeproxy/config"
)

// apiClient is the way to the API server, if the configuration has one.
type apiClient struct {
	to   *rest.Config
	err  error  // why there is none
	file string // the kubeconfig, empty for none
}

func newAPIClient(c *config.Config, version string) *apiClient {
	to, err := agent.KubeClient(c, version).Config()
	return &apiClient{to, err, c.ClientConnection.Kubeconfig}
}

// secrets returns what gives access to the API server.
func (a *apiClient) secrets() *support.Secrets {
	s := &support.Secrets{}
	for _, secret := range inKubeconfig(a.file) {
		s.Add(secret)
	}
	if a.err != nil {
		return s
	}
	tls := a.to.TLSClientConfig
	for _, secret := range [][]byte{
		[]byte(a.to.BearerToken), []byte(a.to.Password), tls.KeyData, tls.CertData, tls.CAData,
		content(a.to.BearerTokenFile), content(tls.KeyFile), content(tls.CertFile), content(tls.CAFile),
	} {
		s.Add(secret)
	}
	return s
}

// inKubeconfig returns the secrets of all users of a kubeconfig, also of one that cannot
// be used.
func inKubeconfig(path string) [][]byte {
	var file struct {
		Clusters []struct{ Cluster map[string]any }
		Users    []struct{ User map[string]any }
	}
	if yaml.Unmarshal(content(path), &file) != nil {
		return nil
	}
	var all [][]byte
	add := func(fields map[string]any, names ...string) {
		for _, name := range names {
			if text, is := fields[name].(string); is {
				all = append(all, []byte(text))
			}
		}
	}
	for _, u := range file.Users {
		add(u.User, "token", "password", "client-key-data", "client-certificate-data")
	}
	for _, c := range file.Clusters {
		add(c.Cluster, "certificate-authority-data")
	}
	return all
}

// content returns what a file holds, nothing if it cannot be read.
func content(path string) []byte {
	if path == "" {
		return nil
	}
	text, _ := os.ReadFile(path)
	return text
}

// mostEvents bounds how many Events are read.
const mostEvents = "500"

// events reads the Events that service proxies reported. The rights of the proxy itself
// do not include that.
func (a *apiClient) events(ctx context.Context, w io.Writer) error {
	if a.err != nil {
		return support.NotHere("there is no API server to ask: " + a.err.Error())
	}
	c := rest.CopyConfig(a.to)
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return fmt.Errorf("set up the API client: %w", err)
	}
	text, err := client.Get().Resource("events").Param("fieldSelector", "reportingComponent=kube-proxy").Param("limit", mostEvents).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	switch {
	case apierrors.IsForbidden(err):
		return support.NotHere("the user of the kubeconfig may not list them: add the output of kubectl get events -A --field-selector reportingComponent=kube-proxy")
	case err != nil:
		return fmt.Errorf("list Events: %w", err)
	}
	var list any
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("list Events: %w", err)
	}
	return document.WriteJSON(w, list)
}
