// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"kubeproxy/common/errtree"
	"kubeproxy/common/files"
)

// Manifests is a Source of files: Services, EndpointSlices, Endpoints, Nodes,
// ServiceCIDRs and Lists of them as YAML or JSON.
//
// It keeps what it has read. A file that cannot be read leaves all its previous objects in
// force. An object that cannot be parsed leaves its own last good version in force. Both
// are reported. A duplicate object is reported too: the first one is used, in
// the order of Paths and then of file names. An object without a namespace is in
// "default". Endpoints serve only Services without any EndpointSlice.
type Manifests struct {
	// Paths are files and directories. In a directory, its own files with the suffixes
	// .yaml, .yml and .json are read, except hidden ones.
	Paths    []string
	NodeName string // the Node to deliver
	// Contents are Paths that have been read already, such as standard input.
	Contents map[string][]byte
	Poll     time.Duration // interval without a notification; 0 means 10 s

	// Report, if set, is called once for each fault when it appears or changes, and once
	// when it is over.
	Report func(Fault)
	// Contact, if set, is called each time all paths have been read, with the longest
	// time until the next call, and how many files and directories were never readable.
	Contact func(every time.Duration, never int)
	// Note, if set, is called once for each kind of object that is ignored, and for each
	// directory without a manifest.
	Note func(string)
}

const defaultPoll = 10 * time.Second

// Run delivers the objects in the files and follows their changes until ctx ends. It
// returns an error only if a path does not exist at the start, or is neither a file nor a
// directory. It has not synced while files exist and nothing in any of them was ever
// readable: then nobody knows the Services, and the rules of an earlier process stay.
func (m *Manifests) Run(ctx context.Context, sink Sink) error {
	if err := m.checkExist(); err != nil {
		return err
	}
	if err := m.checkRegular(); err != nil {
		return err
	}
	w := files.NewWatch(m.Paths...)
	defer w.Close()
	l := newManifestStore(m)
	poll := m.Poll
	if poll <= 0 {
		poll = defaultPoll
	}
	for synced, more := false, true; more; more = w.Wait(ctx, min(poll, l.recheckAfter())) {
		// The watches must exist before the read, so that no change in between is missed.
		l.refresh(sink, w.Add())
		if m.Contact != nil {
			m.Contact(poll, l.never)
		}
		if !synced && (l.never == 0 || l.held) {
			synced = true
			sink.Synced()
		}
	}
	return nil
}

// ObjectError is a fault of one object. Others of its file can be used.
type ObjectError struct{ Err error }

func (e *ObjectError) Error() string { return e.Err.Error() }

// Unwrap returns the fault.
func (e *ObjectError) Unwrap() error { return e.Err }

// OnlyObjects reports whether all that err of Load says is about single objects.
func OnlyObjects(err error) bool {
	return errtree.Every(err, func(err error) bool {
		_, is := err.(*ObjectError)
		return is
	})
}

// Load delivers the objects in the files, then Synced. It returns all faults, joined. If
// a path does not exist, it delivers nothing.
func (m *Manifests) Load(_ context.Context, sink Sink) error {
	if err := m.checkExist(); err != nil {
		return err
	}
	l := newManifestStore(m)
	l.report = nil
	l.refresh(sink, nil)
	sink.Synced()
	var errs []error
	for _, p := range l.problems {
		if p.single {
			p.err = &ObjectError{p.err}
		}
		errs = append(errs, p.err)
	}
	return errors.Join(errs...)
}

func (m *Manifests) checkExist() error {
	if len(m.Paths) == 0 {
		return errors.New("read manifests: no path given; want a file or a directory")
	}
	var errs []error
	for _, p := range m.Paths {
		if m.Contents[p] != nil {
			continue
		}
		if _, err := os.Stat(p); p == "-" && err != nil {
			errs = append(errs, errors.New("read manifests: standard input is for render, diff and explain; want a file or a directory"))
		} else if err != nil {
			errs = append(errs, fmt.Errorf("read manifests: %w", err))
		}
	}
	return errors.Join(errs...)
}

// checkRegular returns an error for paths that are neither files nor directories.
func (m *Manifests) checkRegular() error {
	var errs []error
	for _, p := range m.Paths {
		if info, err := os.Stat(p); err == nil && !info.IsDir() {
			if err := files.CheckRegular(info, maxFile); err != nil {
				errs = append(errs, fmt.Errorf("read manifests: %s %w or a directory", p, err))
			}
		}
	}
	return errors.Join(errs...)
}

// listing is the files of one path when it was last readable.
type listing struct {
	files []string
	err   error
}

// list updates l for path. A path that is gone keeps its files, because an unmounted
// volume must not delete Services.
func (l *listing) list(path string) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		*l = listing{files: []string{filepath.Clean(path)}}
		return
	}
	var entries []os.DirEntry
	if err == nil {
		entries, err = os.ReadDir(path)
	}
	if err != nil {
		l.err = fmt.Errorf("read manifests: %w", err)
		if len(l.files) > 0 {
			l.err = fmt.Errorf("%w; what it held stays in force", l.err)
		}
		return
	}
	*l = listing{}
	for _, e := range entries {
		if isManifest(e.Name()) {
			l.files = append(l.files, filepath.Join(path, e.Name()))
		}
	}
}

func isManifest(name string) bool {
	if name[0] == '.' {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}
