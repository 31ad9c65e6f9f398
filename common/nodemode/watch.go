// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodemode

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// Options are the dependencies of a Watcher.
type Options struct {
	// Select returns the mode that a new process would select with the present
	// annotation, empty if the annotation does not count.
	Select func(ctx context.Context, annotated v1alpha1.ProxyMode) (string, error)
	Modes  []v1alpha1.ProxyMode // all that exist on this system
	Mode   string               // in force
	// Annotated is the annotation that led to Mode.
	Annotated v1alpha1.ProxyMode
	Log       klog.Logger
}

// Watcher follows the mode annotation of the Node while no mode is configured. The mode
// is fixed for a process, so another mode requires a restart. A nil Watcher follows
// nothing.
type Watcher struct {
	options Options
	kick    chan struct{} // has a buffer of one

	evaluated v1alpha1.ProxyMode // the annotation that led to the mode, or was found to lead to it

	mu        sync.Mutex
	text      string // of the annotation
	known     bool   // text has been read
	annotated v1alpha1.ProxyMode
}

// NewWatcher returns a Watcher that knows no Node yet.
func NewWatcher(o Options) *Watcher {
	return &Watcher{options: o, kick: make(chan struct{}, 1), annotated: o.Annotated, evaluated: o.Annotated}
}

// NodeChanged records the present Node.
func (w *Watcher) NodeChanged(n *corev1.Node) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	text, first := n.Annotations[Annotation], !w.known
	if text == w.text && w.known {
		return
	}
	w.text, w.known = text, true
	log := w.options.Log
	if first { // the start has reported a faulty annotation
		log = klog.Logger{}
	}
	w.annotated = modeIn(log, w.options.Modes, n)
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// stableTime is how long an annotation must stay unchanged before it counts: a user may
// remove it and set it again with kubectl.
const stableTime = time.Second

// Run evaluates the annotation whenever it changes, until ctx ends. It returns whether the
// mode requires a restart.
func (w *Watcher) Run(ctx context.Context) (restart bool) {
	if w == nil {
		return false
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.kick:
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return false
			case <-w.kick:
			case <-time.After(stableTime):
				waiting = false
			}
		}
		if w.needsRestart(ctx) {
			return true
		}
	}
}

// needsRestart returns whether the annotation requires a restart, and logs the decision.
func (w *Watcher) needsRestart(ctx context.Context) bool {
	w.mu.Lock()
	annotated := w.annotated
	w.mu.Unlock()
	if annotated == w.evaluated {
		return false
	}
	w.evaluated = annotated
	args := []any{"annotation", Annotation, "asked", annotated, "mode", w.options.Mode}
	next, err := w.options.Select(ctx, annotated)
	switch {
	case err != nil:
		w.options.Log.Error(err, "The Node asks for another mode now, but a new process could not start; the present mode stays", args...)
		return false
	case next == "":
		w.options.Log.Info("The Node asks for another mode now, which does not count, since one is configured", args...)
		return false
	case next == w.options.Mode:
		w.options.Log.Info("The Node asks for another mode now, and the present one stays", append(args, "cause", "it is what a new process would be in, too")...)
		return false
	}
	w.options.Log.Info("The Node asks for another mode now, which only a new process can take in; ending, and whoever started this process is to start it again",
		append(args, "next", next)...)
	return true
}
