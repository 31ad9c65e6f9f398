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

// file is what is known of one manifest file.
type file struct {
	path string
	info fs.FileInfo // as of the last reading, nil if it did not succeed
	at   time.Time   // of the last reading
	sum  [sha256.Size]byte
	// objects are the good ones of the last good state, problems what is
	// wrong now.
	objects  []object
	problems []problem
	// unknown means that there is or may be an object in it of which no good
	// version was ever read.
	unknown bool
	// emptySince is when the file was first seen without content after it had
	// objects.
	emptySince time.Time
}

const (
	maxFile = 32 << 20
	// Some file systems keep times to the second only, or two of them. A
	// file that had just been written when it was read can have been written
	// again without a trace.
	mtimeGranularity = 3 * time.Second
	// Whoever redirects a slow command into a file empties it long before
	// there is anything to write.
	emptyGrace = 2 * time.Second
)

// refresh reads the file if it may have changed.
func (f *file) refresh(d *decoder, now time.Time) {
	info, err := os.Stat(f.path)
	if _, lstatErr := os.Lstat(f.path); err != nil && errors.Is(lstatErr, fs.ErrNotExist) {
		return // since its directory was listed; that will be noticed
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

// beingWritten reports that a file which held objects has lost its content
// only just now.
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

// keepLastGood keeps the last good state and has the file read again next time.
func (f *file) keepLastGood(what ...rejection) {
	f.info, f.problems, f.emptySince = nil, nil, time.Time{}
	f.unknown = f.unknown || len(f.objects) == 0
	for _, b := range what {
		var p *fs.PathError
		if errors.As(b.err, &p) {
			b.err = p.Err // the path is said already
		}
		if len(f.objects) > 0 {
			b.err = fmt.Errorf("%w; the file's last good state stays in force", b.err)
		}
		f.addProblem(b)
	}
}

// addProblem notes what is wrong with something in the file.
func (f *file) addProblem(b rejection) {
	object := f.path
	if name := b.name(); name != "" {
		object += ": " + name
	}
	f.problems = append(f.problems, problem{object, fmt.Errorf("manifest %s: %w", printable.Text(f.path), b.err)})
}

func (f *file) parse(d *decoder, content []byte) {
	got := d.decode(content)
	if len(got.unparsable) > 0 {
		info := f.info
		f.keepLastGood(got.unparsable...)
		f.info = info // it need not be parsed again to know that
		return
	}
	f.problems, f.unknown = nil, false
	old := make(map[key]object, len(f.objects))
	for _, o := range slices.Backward(f.objects) {
		old[o.key] = o
	}
	keep := func(k key) bool {
		o, ok := old[k]
		if ok {
			got.objects = append(got.objects, o)
		}
		f.unknown = f.unknown || !ok
		return ok
	}
	for _, b := range got.rejected {
		if keep(b.key) {
			b.err = fmt.Errorf("%w; its last good version stays in force", b.err)
		}
		f.addProblem(b)
	}
	for _, k := range got.undescribed {
		keep(k)
	}
	f.unknown = f.unknown || got.more > len(got.undescribed)
	if got.more > 0 {
		f.addProblem(rejection{where: "the rest", err: fmt.Errorf("%d more objects cannot be used; what was good of them before stays in force", got.more)})
	}
	f.objects = got.objects
}
