// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"kubeproxy/common/files"
	"kubeproxy/common/printable"
)

// file is the state of one manifest file.
type file struct {
	path string
	info fs.FileInfo // as of the last read, nil if it failed
	at   time.Time   // time of the last read
	sum  [sha256.Size]byte
	// objects are the good ones of the last good state. problems are the present ones.
	objects  []object
	problems []problem
	// unknown means that the file contains or may contain an object of which no good
	// version was ever read.
	unknown bool
	// emptySince is when the file was first found empty after it had objects.
	emptySince time.Time
}

// MaxManifest is the size of the largest file.
const MaxManifest = 64 << 20

const (
	maxFile = MaxManifest
	// mtimeGranularity is the resolution of times in some file systems, with a margin:
	// they store seconds, or two seconds. A file that was read right after a write can be
	// written again without a visible change.
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
		var p *fs.PathError
		if errors.As(b.err, &p) {
			b.err = p.Err // the message contains the path already
		}
		if len(f.objects) > 0 {
			b.err = fmt.Errorf("%w; the file's last good state stays in force", b.err)
		}
		f.addProblem(b, false)
	}
}

// addProblem records a problem with something in the file. single means that others
// of its objects can be used.
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
