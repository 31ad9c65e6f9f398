// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// client makes single requests. It needs the time of each answer, which the clients of
// client-go do not return.
type client struct {
	http *http.Client
	base string
}

func newClient(to *rest.Config) (*client, error) {
	h, err := rest.HTTPClientFor(to)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(to)
	if err != nil {
		return nil, err
	}
	return &client{h, base.String()}, nil
}

// maxAnswer bounds an answer.
const maxAnswer = 64 << 20

// call sends body, if any, and reads the answer into answer. It returns the time of the
// API server, zero if it does not say.
func (c *client) call(ctx context.Context, path string, body, answer any) (time.Time, error) {
	method, text := http.MethodGet, []byte(nil)
	if body != nil {
		var err error
		method = http.MethodPost
		if text, err = json.Marshal(body); err != nil {
			return time.Time{}, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return time.Time{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	response, err := c.http.Do(r)
	if err != nil {
		return time.Time{}, err
	}
	defer response.Body.Close()
	date, _ := http.ParseTime(response.Header.Get("Date"))
	text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return date, err
	}
	if response.StatusCode/100 != 2 {
		return date, statusError(response.StatusCode, method, text)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return date, fmt.Errorf("the answer to %s is no JSON: %w", path, err)
	}
	return date, nil
}

func statusError(code int, method string, text []byte) error {
	var s metav1.Status
	if json.Unmarshal(text, &s) == nil && s.Status == metav1.StatusFailure {
		return &apierrors.StatusError{ErrStatus: s}
	}
	return apierrors.NewGenericServerResponse(code, method, schema.GroupResource{}, "", "", 0, true)
}
