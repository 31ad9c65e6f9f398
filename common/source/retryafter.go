// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// MaxRetryAfter bounds what RetryAfter returns. API servers ask for seconds. A mistake of a proxy on
// the way, or of a clock, must not keep a node from the cluster for longer.
const MaxRetryAfter = 10 * time.Minute

// NoteRetryAfter makes clients of c note what answers ask for.
func NoteRetryAfter(c *rest.Config) {
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return retryReader{next} })
}

type retryKey struct{}

// WithRetryAfter returns a context for one request, which RetryAfter reads afterwards.
func WithRetryAfter(ctx context.Context) context.Context {
	return context.WithValue(ctx, retryKey{}, new(time.Duration))
}

// RetryAfter returns how long the answer to the request with ctx, whose error is err, asks to
// wait before the next request. It is 0 if the answer does not ask.
func RetryAfter(ctx context.Context, err error) time.Duration {
	var asked time.Duration
	if noted, is := ctx.Value(retryKey{}).(*time.Duration); is {
		asked = *noted
	}
	if seconds, is := apierrors.SuggestsClientDelay(err); is {
		asked = max(asked, time.Duration(seconds)*time.Second)
	}
	return min(asked, MaxRetryAfter)
}

// retryReader notes what answers ask for. It implements http.RoundTripper and utilnet.RoundTripperWrapper.
type retryReader struct{ next http.RoundTripper }

var _ utilnet.RoundTripperWrapper = retryReader{}

func (r retryReader) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.next.RoundTrip(request)
	noted, is := request.Context().Value(retryKey{}).(*time.Duration)
	if is && answer != nil && answer.StatusCode >= http.StatusBadRequest {
		*noted = retryInHeader(answer.Header, time.Now())
	}
	return answer, err
}

func (r retryReader) WrappedRoundTripper() http.RoundTripper { return r.next }

// retryInHeader returns what a header asks for. The client's own retries would obey that,
// but report nothing meanwhile, and they do not know the form with a date
// (https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3). A date is compared with the server's own clock
// if the header has that, so a wrong clock of this node does not matter.
func retryInHeader(h http.Header, now time.Time) time.Duration {
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
