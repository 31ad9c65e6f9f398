// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package retryafter reads how long a busy API server asks its clients to stay away. The
// client's own retries would obey that, but report nothing meanwhile, and they do not
// know the form with a date: https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3
package retryafter

import (
	"context"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// Longest bounds what Asked returns. API servers ask for seconds. A mistake of a proxy on
// the way, or of a clock, must not keep a node from the cluster for longer.
const Longest = 10 * time.Minute

// Wrap makes clients of c note what answers ask for.
func Wrap(c *rest.Config) {
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return reader{next} })
}

type noteKey struct{}

// NewContext returns a context for one request, which Asked reads afterwards.
func NewContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, noteKey{}, new(time.Duration))
}

// Asked returns how long the answer to the request with ctx, whose error is err, asks to
// wait before the next request. It is 0 if the answer does not ask.
func Asked(ctx context.Context, err error) time.Duration {
	var asked time.Duration
	if noted, is := ctx.Value(noteKey{}).(*time.Duration); is {
		asked = *noted
	}
	if seconds, is := apierrors.SuggestsClientDelay(err); is {
		asked = max(asked, time.Duration(seconds)*time.Second)
	}
	return min(asked, Longest)
}

// reader notes what answers ask for.
type reader struct{ next http.RoundTripper }

var _ utilnet.RoundTripperWrapper = reader{}

// RoundTrip implements http.RoundTripper.
func (r reader) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.next.RoundTrip(request)
	noted, is := request.Context().Value(noteKey{}).(*time.Duration)
	if is && answer != nil && answer.StatusCode >= http.StatusBadRequest {
		*noted = inHeader(answer.Header, time.Now())
	}
	return answer, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (r reader) WrappedRoundTripper() http.RoundTripper { return r.next }

// inHeader returns what a header asks for. A date is compared with the server's own clock
// if the header has that, so a wrong clock of this node does not matter.
func inHeader(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second
	}
	until, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	if server, err := http.ParseTime(h.Get("Date")); err == nil {
		now = server
	}
	return max(0, until.Sub(now))
}
