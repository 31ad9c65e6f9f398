// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/config"
)

// annotationWatcher follows the mode annotation of the Node while no mode is configured.
// The mode is fixed for a process, so another mode requires a restart.
type annotationWatcher struct {
	// selectMode returns the mode that a new process would select with the present
	// annotation, empty if the annotation does not count.
	selectMode func(ctx context.Context, annotated v1alpha1.ProxyMode) (string, error)
	os         config.OS
	mode       string // in force
	log        klog.Logger
	kick       chan struct{} // has a buffer of one

	evaluated v1alpha1.ProxyMode // the annotation that led to mode, or was found to lead to it

	mu        sync.Mutex
	text      string // of the annotation
	known     bool   // text has been read
	annotated v1alpha1.ProxyMode
}

// newAnnotationWatcher returns nil if the annotation does not count. request is what led
// to mode.
func newAnnotationWatcher(o *options, request modeRequest, mode string, log klog.Logger) *annotationWatcher {
	if request.configured != "" || hostOS != config.Linux {
		return nil
	}
	f := &annotationWatcher{os: hostOS, mode: mode, log: log, kick: make(chan struct{}, 1), annotated: request.annotated, evaluated: request.annotated}
	f.selectMode = func(ctx context.Context, annotated v1alpha1.ProxyMode) (string, error) {
		c, err := config.Load(&o.config, hostOS) // the file may have changed
		if err != nil || c.Mode != "" {
			return "", err
		}
		return modeFor(ctx, c, o, annotated)
	}
	return f
}

// modeFor returns the mode that would be selected.
func modeFor(ctx context.Context, c *config.Config, o *options, annotated v1alpha1.ProxyMode) (string, error) {
	var discard klog.Logger
	x, err := newBackends(klog.NewContext(ctx, discard), c, o, annotated)
	if err != nil {
		return "", err
	}
	for _, b := range x.backends {
		if closer, ok := b.Backend.(io.Closer); ok {
			_ = closer.Close() // it has programmed nothing
		}
	}
	return x.backends[0].mode, nil
}

// nodeChanged records the present Node.
func (f *annotationWatcher) nodeChanged(n *corev1.Node) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	text, first := n.Annotations[modeAnnotation], !f.known
	if text == f.text && f.known {
		return
	}
	f.text, f.known = text, true
	log := f.log
	if first { // the start has reported a faulty annotation
		log = klog.Logger{}
	}
	f.annotated = annotatedMode(log, f.os, n)
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// annotationStableTime is how long an annotation must stay unchanged before it counts: a
// user may remove it and set it again with kubectl.
const annotationStableTime = time.Second

// run evaluates the annotation whenever it changes, until ctx ends. It returns errRestart
// if the mode requires a restart.
func (f *annotationWatcher) run(ctx context.Context) error {
	if f == nil {
		return nil
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.kick:
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return nil
			case <-f.kick:
			case <-time.After(annotationStableTime):
				waiting = false
			}
		}
		if f.needsRestart(ctx) {
			return errRestart
		}
	}
}

// needsRestart returns whether the annotation requires a restart, and logs the decision.
func (f *annotationWatcher) needsRestart(ctx context.Context) bool {
	f.mu.Lock()
	annotated := f.annotated
	f.mu.Unlock()
	if annotated == f.evaluated {
		return false
	}
	f.evaluated = annotated
	args := []any{"annotation", modeAnnotation, "asked", annotated, "mode", f.mode}
	next, err := f.selectMode(ctx, annotated)
	switch {
	case err != nil:
		f.log.Error(err, "The Node asks for another mode now, but a new process could not start; the present mode stays", args...)
		return false
	case next == "":
		f.log.Info("The Node asks for another mode now, which does not count, since one is configured", args...)
		return false
	case next == f.mode:
		f.log.Info("The Node asks for another mode now, and the present one stays", append(args, "cause", "it is what a new process would be in, too")...)
		return false
	}
	f.log.Info("The Node asks for another mode now, which only a new process can take in; ending, and whoever started this process is to start it again",
		append(args, "next", next)...)
	return true
}
