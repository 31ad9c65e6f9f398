// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// pacer spaces the requests for kinds that cannot be read. Each kind has intervals of its
// own, but the first one that can be read again ends those of the others. The library's
// pauses grow to a minute and know nothing of each other: after an outage, endpoints stay
// old for so long, or a proxy that has just started waits for its last kind.
type pacer struct {
	mu      sync.Mutex
	failing map[string]*wait.Backoff // by kind
	asked   map[string]time.Time     // when a kind was asked for last
	over    chan struct{}            // closed when a kind can be read again
}

// The intervals begin as the library's pauses. In a long outage they make about as many
// requests as those, which begin anew every two minutes: client-go
// tools/cache/reflector.go.
const (
	firstInterval = 400 * time.Millisecond
	lastInterval  = 10 * time.Second // and up to twice as much, by chance
)

// floor is the library's pause, which is there in any case. It bounds what counts as no
// failure, such as versions that expire.
var floor = wait.Backoff{Duration: firstInterval, Jitter: 1}

func newPacer() *pacer {
	return &pacer{failing: map[string]*wait.Backoff{}, asked: map[string]time.Time{}, over: make(chan struct{})}
}

// wait returns when the kind may be asked for. A request that waited long for its answer
// is followed by the next one at once.
func (p *pacer) wait(ctx context.Context, kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b, over := p.failing[kind], p.over; b != nil {
		timer := time.NewTimer(b.Step() - time.Since(p.asked[kind]))
		defer timer.Stop()
		p.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-over:
		case <-timer.C:
		}
		p.mu.Lock()
	}
	p.asked[kind] = time.Now()
}

// failed records a failure to read a kind.
func (p *pacer) failed(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing[kind] == nil {
		p.failing[kind] = &wait.Backoff{Duration: firstInterval, Cap: lastInterval, Factor: 2, Jitter: 1, Steps: math.MaxInt}
	}
}

// read records that a kind can be read.
func (p *pacer) read(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing[kind] == nil {
		return
	}
	delete(p.failing, kind)
	close(p.over)
	p.over = make(chan struct{})
}

// forget makes the next request for a kind come at once.
func (p *pacer) forget(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failing, kind)
}
