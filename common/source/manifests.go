// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"kubeproxy/common/errtree"
	"kubeproxy/common/files"
	"kubeproxy/common/printable"
)

// Manifests is a Source of files: Services, EndpointSlices, Endpoints, Nodes, ServiceCIDRs and
// Lists of them as YAML or JSON.
//
// It keeps what it has read: a file that cannot be read leaves its objects in force, an object that
// cannot be parsed its last good version. Both are reported, and duplicates, of which the first
// counts, in the order of Paths and then of file names. An object without a namespace is in
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
	// Note, if set, is called once for each ignored kind, and each directory without a manifest.
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
			errs = append(errs, errors.New("read manifests: standard input is for render, diff, explain and doctor; want a file or a directory"))
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

// list updates l for path. One that is gone keeps its files: unmounting must not delete Services.
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

// file is the state of one manifest file.
type file struct {
	path string
	info fs.FileInfo // as of the last read, nil if it failed
	at   time.Time   // time of the last read
	sum  [sha256.Size]byte
	// objects are the good ones of the last good state. problems are the present ones.
	objects  []object
	problems []problem
	// unknown means that the file has or may have an object that was never read well.
	unknown bool
	// emptySince is when the file was first found empty after it had objects.
	emptySince time.Time
}

// MaxManifest is the size of the largest file.
const MaxManifest = 64 << 20

const (
	maxFile = MaxManifest
	// mtimeGranularity is the resolution of times in some file systems, up to two seconds, with a
	// margin: what was read right after a write can be written again without a visible change.
	mtimeGranularity = 3 * time.Second
	// emptyGrace is how long an empty file keeps its objects. Shell redirection empties a
	// file before the command writes to it.
	emptyGrace = 2 * time.Second
)

// refresh reads the file if it may have changed.
func (f *file) refresh(d *decoder, now time.Time) {
	info, err := os.Stat(f.path)
	if _, lstatErr := os.Lstat(f.path); err != nil && errors.Is(lstatErr, fs.ErrNotExist) {
		return // deleted since its directory was listed; the next listing notices
	}
	if err == nil {
		err = files.CheckRegular(info, maxFile)
	}
	if err != nil {
		f.keepLastGood(rejection{err: err})
		return
	}
	if f.info != nil && f.emptySince.IsZero() && os.SameFile(f.info, info) && f.info.Size() == info.Size() &&
		f.info.ModTime().Equal(info.ModTime()) && f.at.Sub(info.ModTime()) > mtimeGranularity {
		return
	}
	content, info, err := files.Read(f.path, maxFile)
	content = files.Text(content)
	if err != nil {
		f.keepLastGood(rejection{err: err})
		return
	}
	if f.beingWritten(content, now) {
		return
	}
	sum := sha256.Sum256(content)
	known := f.info != nil && sum == f.sum
	f.info, f.at, f.sum = info, now, sum
	if !known {
		f.parse(d, content)
	}
}

// beingWritten reports whether a file that contained objects has only just become empty.
func (f *file) beingWritten(content []byte, now time.Time) bool {
	if len(content) > 0 || len(f.objects) == 0 {
		f.emptySince = time.Time{}
		return false
	}
	if f.emptySince.IsZero() {
		f.emptySince = now
	}
	if now.Sub(f.emptySince) < emptyGrace {
		return true
	}
	f.emptySince = time.Time{}
	return false
}

// keepLastGood keeps the last good state and causes another read next time.
func (f *file) keepLastGood(what ...rejection) {
	f.info, f.problems, f.emptySince = nil, nil, time.Time{}
	f.unknown = f.unknown || len(f.objects) == 0
	for _, b := range what {
		if p, is := errors.AsType[*fs.PathError](b.err); is {
			b.err = p.Err // the message contains the path already
		}
		if len(f.objects) > 0 {
			b.err = fmt.Errorf("%w; the file's last good state stays in force", b.err)
		}
		f.addProblem(b, false)
	}
}

// addProblem records a problem with something in the file. single leaves others usable.
func (f *file) addProblem(b rejection, single bool) {
	object := f.path
	if name := b.name(); name != "" {
		object += ": " + name
	}
	f.problems = append(f.problems, problem{object, fmt.Errorf("manifest %s: %w", printable.Text(f.path), b.err), single})
}

func (f *file) parse(d *decoder, content []byte) {
	d.path = f.path
	got := d.decode(content)
	if got.tooMuch != nil {
		info := f.info
		f.keepLastGood(append(got.rejected, rejection{err: got.tooMuch})...)
		f.info = info // no need to parse it again
		return
	}
	f.problems, f.unknown = nil, false
	partly := len(got.objects) > 0
	old, have := byKey(f.objects), byKey(got.objects)
	keep := func(k key) bool {
		o, ok := old[k]
		if _, again := have[k]; ok && !again {
			got.objects = append(got.objects, o)
			have[k] = o
		}
		f.unknown = f.unknown || !ok
		return ok
	}
	for _, b := range got.rejected {
		switch {
		case b.key.kind != "" && keep(b.key):
			b.err = fmt.Errorf("%w; its last good version stays in force", b.err)
		case b.key.kind == "" && len(old) > 0:
			b.err = fmt.Errorf("%w; the last good version of what is missing stays in force", b.err)
		}
		f.addProblem(b, partly)
	}
	for _, k := range got.undescribed {
		keep(k)
	}
	if got.unnamed > 0 { // it may be any of those that are missing
		before := len(got.objects)
		for _, o := range f.objects {
			keep(o.key)
		}
		f.unknown = f.unknown || got.unnamed > len(got.objects)-before
	}
	if more := got.rejectedCount - len(got.rejected); more > 0 {
		f.addProblem(rejection{where: "the rest", err: fmt.Errorf("%d more objects cannot be used; what was good of them before stays in force", more)}, partly)
	}
	f.objects = got.objects
}

// byKey returns the first object of each key.
func byKey(all []object) map[key]object {
	found := make(map[key]object, len(all))
	for _, o := range slices.Backward(all) {
		found[o.key] = o
	}
	return found
}
