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

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/explain"
	"kubeproxy/common/printable"
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
func (a Client) Explain(ctx context.Context, q explain.Query) (*explain.Explanation, error) {
	question := url.Values{"source": {q.Source}, "destination": {q.Destination}, "interface": {q.Interface}}
	answer, err := a.ask(ctx, question)
	unknown, is := errors.AsType[*unknownPodError](err)
	if !is {
		return answer, err
	}
	if err := a.namePod(ctx, q.Source, question); err != nil {
		return nil, fmt.Errorf("%w; %s", unknown, printable.Error(err))
	}
	return a.ask(ctx, question)
}

// unknownPodError is the answer of a proxy that does not know the pod.
type unknownPodError struct{ text string }

func (e *unknownPodError) Error() string { return e.text }

func (a Client) ask(ctx context.Context, question url.Values) (*explain.Explanation, error) {
	q := statusview.Query{Server: a.Server, Version: a.Version}
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
		return nil, fmt.Errorf("%s answers something else than an explanation: %w", a.Server, err)
	case answer.UnknownPod:
		return nil, &unknownPodError{printable.Text(answer.Error)}
	case !accepted:
		return nil, errors.New(printable.Text(answer.Error))
	}
	return &answer.Explanation, nil
}

// namePod adds the addresses of the pod that source names to the question.
func (a Client) namePod(ctx context.Context, source string, question url.Values) error {
	_, name, _ := strings.Cut(source, "/")
	namespace, name, _ := strings.Cut(name, "/")
	addrs, node := a.PodAddresses, a.PodNode
	if len(addrs) == 0 {
		var err error
		if addrs, node, err = a.pod(ctx, types.NamespacedName{Namespace: namespace, Name: name}); err != nil {
			return err
		}
	}
	for _, x := range addrs {
		question.Add("podAddress", x.String())
	}
	question.Set("podNode", node)
	return nil
}
