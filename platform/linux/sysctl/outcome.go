// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"errors"
	"fmt"
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
}

// Dir implements Files with a root directory.
type Dir string

// ReadFile implements Files.
func (d Dir) ReadFile(name string) ([]byte, error) { return os.ReadFile(d.path(name)) }

// WriteFile implements Files.
func (d Dir) WriteFile(name string, data []byte) error {
	f, err := os.OpenFile(d.path(name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
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
		return o
	}
	if o.Err == nil {
		o.Err = files.WriteFile(p.file, []byte(o.Want))
	}
	o.Action = Written
	if o.Err != nil {
		o.Action = Failed
	}
	return o
}
