// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"
	"time"

	"kubeproxy/config"
)

// effective is the configuration that the proxy works by.
type effective struct {
	file string // empty without one
	// prepare gets a value when settings of the system have changed.
	prepare chan struct{}

	mu     sync.Mutex
	now    *config.Config
	loaded time.Time
	wrong  string // with the file as it is, empty if it can be used
}

func newEffective(file string, c *config.Config) *effective {
	return &effective{file: file, prepare: make(chan struct{}, 1), now: c, loaded: time.Now()}
}

func (f *effective) config() *config.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// take puts c in force.
func (f *effective) take(c *config.Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now, f.loaded, f.wrong = c, time.Now(), ""
}

// refuse notes what is wrong with the file.
func (f *effective) refuse(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong = err.Error()
}

// prepareAgain asks for the settings of the system to be made.
func (f *effective) prepareAgain() {
	select {
	case f.prepare <- struct{}{}:
	default:
	}
}

// status is what /statusz tells.
func (f *effective) status() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]string{"Configuration loaded": f.loaded.UTC().Format(time.UnixDate)}
	if f.file != "" {
		all["Configuration file"] = f.file
	}
	if f.wrong != "" {
		all["Configuration file cannot be used"] = f.wrong
	}
	return all
}
