// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// pacer spaces the requests for kinds that cannot be read. Each kind has intervals of its
// own, but the first one that can be read again shortens those of the others. The
// library's pauses grow to a minute and know nothing of each other: after an outage,
// endpoints stay old for so long, or a proxy that has just started waits for its last kind.
type pacer struct {
	mu      sync.Mutex
	failing map[string]*outage   // by kind
	asked   map[string]time.Time // when a kind was asked for last
	barred  map[string]time.Time // until when the API server wants no request for a kind
	over    chan struct{}        // closed when a kind can be read again
	overAt  time.Time            // when that was last
}

// outage is a time in which a kind cannot be read.
type outage struct {
	wait.Backoff
	since time.Time
}

// The intervals begin as the library's pauses, and grow as long: client-go
// tools/cache/reflector.go.
const (
	firstInterval = 400 * time.Millisecond
	lastInterval  = 30 * time.Second // and up to twice as much, by chance
	// lastSpread bounds the random delay of a kind after another one can be read. It grows
	// to that with the outage, because in a long one all nodes fail, and then return
	// together.
	lastSpread = 10 * time.Second
)

// floor is the library's pause, which is there in any case. It bounds what counts as no
// failure, such as versions that expire.
var floor = wait.Backoff{Duration: firstInterval, Jitter: 1}

func newPacer() *pacer {
	return &pacer{
		failing: map[string]*outage{}, asked: map[string]time.Time{}, barred: map[string]time.Time{},
		over: make(chan struct{}),
	}
}

// wait returns when the kind may be asked for. A request that waited long for its answer
// is followed by the next one at once.
func (p *pacer) wait(ctx context.Context, kind string) {
	p.mu.Lock()
	due, barred := p.barred[kind], p.barred[kind]
	var over chan struct{}
	var since time.Time
	early := false
	if o := p.failing[kind]; o != nil {
		over, since = p.over, o.since
		early = p.overAt.After(p.asked[kind]) // during the library's own pause
		if at := p.asked[kind].Add(o.Step()); at.After(due) {
			due = at
		}
	}
	p.mu.Unlock()
	if early || sleep(ctx, time.Until(due), over) {
		spread := rand.N(min(time.Since(since)/10, lastSpread) + 1)
		sleep(ctx, min(time.Until(due), max(time.Until(barred), spread)), nil)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[kind] = time.Now()
}

// sleep returns after d, at the end of ctx, or when over is closed, which is early.
func sleep(ctx context.Context, d time.Duration, over <-chan struct{}) (early bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-over:
		return true
	}
	return false
}

// bar delays the next request for a kind by d, as the API server asked, and by a random
// part of that, because it asks all nodes alike.
func (p *pacer) bar(kind string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d > 0 {
		p.barred[kind] = time.Now().Add(wait.Jitter(d, 0.5))
	}
}

// failed records a failure to read a kind.
func (p *pacer) failed(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing[kind] == nil {
		pauses := wait.Backoff{Duration: firstInterval, Cap: lastInterval, Factor: 2, Jitter: 1, Steps: math.MaxInt}
		p.failing[kind] = &outage{pauses, time.Now()}
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
	p.over, p.overAt = make(chan struct{}), time.Now()
}

// forget makes the next request for a kind come at once, unless the API server asked for a
// pause.
func (p *pacer) forget(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.failing, kind)
}
