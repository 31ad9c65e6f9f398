// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync"
	"time"

	"kubeproxy/config"
)

// activeConfig is the configuration in force.
type activeConfig struct {
	file string // empty without one
	// prepareRequests receives a value when system settings in the configuration have
	// changed.
	prepareRequests chan struct{}

	mu        sync.Mutex
	current   *config.Config
	loaded    time.Time
	fileError string // why the present file cannot be used; empty if it can
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

// setFileError records why the file cannot be used; nil means that it can.
func (f *activeConfig) setFileError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fileError = err.Error()
}

// requestPrepare requests that the system settings are applied again.
func (f *activeConfig) requestPrepare() {
	select {
	case f.prepareRequests <- struct{}{}:
	default:
	}
}

// status returns what /statusz shows of the configuration.
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
