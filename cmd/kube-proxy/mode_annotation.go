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

// annotationWatcher follows which mode the Node asks for while none is configured. A
// mode is for a whole process, so another one takes another process.
type annotationWatcher struct {
	// selectMode returns the mode that a new process would be in with what the Node
	// asks for now, empty if that does not count.
	selectMode func(ctx context.Context, annotated v1alpha1.ProxyMode) (string, error)
	os         config.OS
	mode       string // in force
	log        klog.Logger
	kick       chan struct{} // has room for one

	evaluated v1alpha1.ProxyMode // what led to mode, or was found to lead there

	mu        sync.Mutex
	text      string // of the annotation
	known     bool   // text is
	annotated v1alpha1.ProxyMode
}

// newAnnotationWatcher returns nil where the Node is not to be asked. was is what led to
// mode.
func newAnnotationWatcher(o *options, request modeRequest, mode string, log klog.Logger) *annotationWatcher {
	if request.configured != "" || hostOS != config.Linux {
		return nil
	}
	f := &annotationWatcher{os: hostOS, mode: mode, log: log, kick: make(chan struct{}, 1), annotated: request.annotated, evaluated: request.annotated}
	f.selectMode = func(ctx context.Context, annotated v1alpha1.ProxyMode) (string, error) {
		c, err := config.Load(&o.config, hostOS) // which may have changed
		if err != nil || c.Mode != "" {
			return "", err
		}
		return modeFor(ctx, c, o, annotated)
	}
	return f
}

// modeFor returns the mode that would be taken.
func modeFor(ctx context.Context, c *config.Config, o *options, annotated v1alpha1.ProxyMode) (string, error) {
	var discard klog.Logger
	x, err := newBackends(klog.NewContext(ctx, discard), c, o, annotated)
	if err != nil {
		return "", err
	}
	for _, b := range x.backends {
		if closer, ok := b.Backend.(io.Closer); ok {
			_ = closer.Close() // it has written nothing
		}
	}
	return x.backends[0].mode, nil
}

// nodeChanged takes in the Node as it is now.
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
	if first { // what is wrong with it was said at the start
		log = klog.Logger{}
	}
	f.annotated = annotatedMode(log, f.os, n)
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// annotationStableTime is how long an annotation must stay as it is: kubectl may remove it
// and set it again.
const annotationStableTime = time.Second

// run judges what the Node asks for whenever that changes, until ctx ends, or
// until it takes a new process, which is errRestart.
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

// needsRestart reports that the mode that the Node asks for takes another process, and
// says what comes of it.
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
