// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"kubeproxy/test/kit"
)

func TestAsked(t *testing.T) {
	const date = "Mon, 02 Jan 2006 15:04:05 GMT"
	const inBody = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429,"details":{"retryAfterSeconds":7}}`
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for name, c := range map[string]struct {
		code         int
		header, body string
		want         time.Duration
	}{
		"seconds":               {429, "20", "", 20 * time.Second},
		"unavailable":           {503, "20", "", 20 * time.Second},
		"seconds with a Status": {429, "20", `{"kind":"Status","apiVersion":"v1","status":"Failure","code":429}`, 20 * time.Second},
		"in the body only":      {429, "", inBody, 7 * time.Second},
		"the longer one":        {429, "3", inBody, 7 * time.Second},
		"date":                  {503, "Mon, 02 Jan 2006 15:04:35 GMT", "", 30 * time.Second},
		"date in the past":      {503, "Mon, 02 Jan 2006 15:04:01 GMT", "", 0},
		"absurd":                {429, "4000000000", "", MaxRetryAfter},
		"absurd date":           {429, "Mon, 02 Jan 2096 15:04:05 GMT", "", MaxRetryAfter},
		"no number":             {429, "soon", "", 0},
		"negative":              {429, "-4", "", 0},
		"not found":             {404, "20", `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`, 20 * time.Second},
		"granted":               {200, "20", `{"kind":"Status","apiVersion":"v1","status":"Success"}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", date)
				w.Header().Set("Content-Type", "application/json")
				if c.header != "" {
					w.Header().Set("Retry-After", c.header)
				}
				w.WriteHeader(c.code)
				_, _ = w.Write([]byte(c.body))
			}))
			defer server.Close()
			config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{
				GroupVersion:         &schema.GroupVersion{Version: "v1"},
				NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
			}}
			NoteRetryAfter(config)
			client, err := rest.RESTClientFor(config)
			kit.Must(t, err)
			ctx := WithRetryAfter(t.Context())
			err = client.Get().Resource("services").MaxRetries(0).Do(ctx).Error()
			if refused := c.code != http.StatusOK; (err != nil) != refused {
				t.Fatalf("the request failed: %v", err)
			}
			kit.Equal(t, RetryAfter(ctx, err), c.want, "Asked")
		})
	}
	// Without a clock of the server, that of this node counts.
	now := time.Date(2006, 1, 2, 15, 4, 5, 0, time.UTC)
	if got := retryInHeader(http.Header{"Retry-After": {"Mon, 02 Jan 2006 15:04:15 GMT"}}, now); got != 10*time.Second {
		t.Errorf("inHeader without Date = %s, want 10s", got)
	}
}
