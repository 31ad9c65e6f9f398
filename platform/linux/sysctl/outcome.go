// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Files is the access to the kernel's files. Names are separated by slashes, without a
// leading slash, as in "proc/sys/net/ipv4/ip_forward".
type Files interface {
	ReadFile(name string) ([]byte, error)
	// WriteFile replaces the content of an existing file. It creates none.
	WriteFile(name string, data []byte) error
	// Writable reports whether WriteFile may write the file. It changes nothing.
	Writable(name string) bool
}

// ErrFixed is why a parameter cannot be changed by any process of this network namespace,
// whatever its rights are. Connection tracking has such parameters, see
// https://git.kernel.org/linus/671c54ea8c7f and nf_conntrack_set_hashsize.
var ErrFixed = errors.New("only the first network namespace of the machine can change it")

// Dir implements Files with a root directory.
type Dir string

// ReadFile implements Files.
func (d Dir) ReadFile(name string) ([]byte, error) { return os.ReadFile(d.path(name)) }

// WriteFile implements Files. The error is an ErrFixed if that is the reason.
func (d Dir) WriteFile(name string, data []byte) error {
	f, err := os.OpenFile(d.path(name), os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrPermission) && d.fixed(name) {
		return fmt.Errorf("%w: %w", ErrFixed, err)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", ErrFixed, err)
	}
	return errors.Join(err, f.Close())
}

// fixed reports whether the kernel offers the file to nobody for writing. Root has no more
// rights to a file below /proc/sys than its mode says, see sysctl_perm in
// fs/proc/proc_sysctl.c.
func (d Dir) fixed(name string) bool {
	stat, err := os.Stat(d.path(name))
	return err == nil && stat.Mode().Perm()&0o222 == 0
}

// Writable implements Files.
func (d Dir) Writable(name string) bool {
	f, err := os.OpenFile(d.path(name), os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

func (d Dir) path(name string) string { return filepath.Join(string(d), filepath.FromSlash(name)) }

// Action is what happened to a parameter.
type Action int

// The actions.
const (
	Unchanged Action = iota // it already has the wanted value, or a better one
	Written                 // it now has the wanted value
	Failed                  // it does not have the wanted value, see Err
	Mismatch                // it does not have the wanted value, and this proxy does not set it
)

// Outcome is the result for one parameter.
type Outcome struct {
	Name       string
	Want, Have string // Have is the previous value, empty if it could not be read
	Action     Action
	Err        error // of a Failed one, or of a Mismatch that cannot be read
	// Writable is whether this process may write one that is Written or Unchanged.
	Writable bool
}

// String returns one sentence, without a full stop.
func (o Outcome) String() string {
	switch {
	case o.Action == Written:
		return fmt.Sprintf("%s set to %s, was %s", o.Name, o.Want, o.Have)
	case o.Action == Unchanged && o.Have == o.Want:
		return fmt.Sprintf("%s is %s already", o.Name, o.Have)
	case o.Action == Unchanged:
		return fmt.Sprintf("%s stays %s, which is enough for the wanted %s", o.Name, o.Have, o.Want)
	case o.Have == "":
		return fmt.Sprintf("%s should be %s and is unknown: %v", o.Name, o.Want, o.Err)
	case o.Action == Mismatch:
		return fmt.Sprintf("%s is %s and should be %s", o.Name, o.Have, o.Want)
	}
	return fmt.Sprintf("%s stays %s, wanted %s: %v", o.Name, o.Have, o.Want, o.Err)
}

// check compares the parameter with w and changes nothing.
func check(files Files, p parameter, w requirement) Outcome {
	o := Outcome{Name: p.name, Want: w.String(), Action: Mismatch}
	b, err := files.ReadFile(p.file)
	o.Have, o.Err = strings.TrimSpace(string(b)), err
	if err == nil && w.satisfiedBy(o.Have) {
		o.Action = Unchanged
	}
	return o
}

// ensure writes the value of w unless the parameter satisfies w.
func ensure(files Files, p parameter, w requirement) Outcome {
	o := check(files, p, w)
	if o.Action == Unchanged {
		o.Writable = files.Writable(p.file)
		return o
	}
	if o.Err == nil {
		o.Err = files.WriteFile(p.file, []byte(o.Want))
	}
	o.Action, o.Writable = Written, true
	if o.Err != nil {
		o.Action, o.Writable = Failed, false
	}
	return o
}
