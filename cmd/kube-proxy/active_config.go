// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"sync"
	"time"

	"kubeproxy/config"
)

// activeConfig is the configuration that the proxy works by.
type activeConfig struct {
	file string // empty without one
	// prepareRequests gets a value when settings of the system have changed.
	prepareRequests chan struct{}

	mu        sync.Mutex
	current   *config.Config
	loaded    time.Time
	fileError string // with the file as it is, empty if it can be used
}

func newActiveConfig(file string, c *config.Config) *activeConfig {
	return &activeConfig{file: file, prepareRequests: make(chan struct{}, 1), current: c, loaded: time.Now()}
}

func (f *activeConfig) config() *config.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current
}

// set puts c in force.
func (f *activeConfig) set(c *config.Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current, f.loaded, f.fileError = c, time.Now(), ""
}

// setFileError notes what is wrong with the file.
func (f *activeConfig) setFileError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fileError = err.Error()
}

// requestPrepare asks for the settings of the system to be made.
func (f *activeConfig) requestPrepare() {
	select {
	case f.prepareRequests <- struct{}{}:
	default:
	}
}

// status is what /statusz tells.
func (f *activeConfig) status() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]string{"Configuration loaded": f.loaded.UTC().Format(time.UnixDate)}
	if f.file != "" {
		all["Configuration file"] = f.file
	}
	if f.fileError != "" {
		all["Configuration file cannot be used"] = f.fileError
	}
	return all
}
