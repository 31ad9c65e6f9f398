// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// What is written here may be in a folder where others can make files, such as /tmp, and mostly
// by root. So a link at the end of a path is never followed: who made it says where it leads.

// Output is a file that a command writes as a whole.
type Output struct {
	*os.File
	made fs.FileInfo // nil for a device or pipe, which stays as it is
}

// Create makes a new file, or opens a device or a named pipe. What exists otherwise stays as
// it is, and is an error.
func Create(path string, mode fs.FileMode) (*Output, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err == nil {
		info, err := f.Stat()
		return &Output{f, info}, err
	}
	info, lstatErr := os.Lstat(path)
	if !errors.Is(err, fs.ErrExist) || lstatErr != nil {
		return nil, err
	}
	if info.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) == 0 {
		return nil, fmt.Errorf("%s exists and is %s: want the name of a new file", path, kindOf(info))
	}
	if f, err = reopen(path, os.O_WRONLY, info); err != nil {
		return nil, err
	}
	return &Output{File: f}, nil
}

// Discard closes the file and removes it, if Create made it and it is still there.
func (o *Output) Discard() error {
	err := o.Close()
	if now, lstatErr := os.Lstat(o.Name()); o.made == nil || lstatErr != nil || !os.SameFile(o.made, now) {
		return err
	}
	return errors.Join(err, os.Remove(o.Name()))
}

// Append opens a regular file to which lines are appended. It makes the file if there is none.
func Append(path string, mode fs.FileMode) (*os.File, error) {
	const flags = os.O_WRONLY | os.O_APPEND
	f, err := os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, mode)
	if !errors.Is(err, fs.ErrExist) {
		return f, err
	}
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is %s: want a regular file", path, kindOf(info))
	}
	return reopen(path, flags, info)
}

// Replace writes a file as a whole: a new one takes the place of a regular file when it is
// complete, with the permissions of that. A device or a named pipe is written to.
func Replace(path string, mode fs.FileMode, write func(io.Writer) error) error {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().IsRegular():
		mode = info.Mode().Perm()
	case err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) == 0:
		return fmt.Errorf("%s is %s: want a regular file or the name of a new one", path, kindOf(info))
	case err == nil:
		f, err := reopen(path, os.O_WRONLY, info)
		if err != nil {
			return err
		}
		return errors.Join(write(f), f.Close())
	}
	next, err := Create(fmt.Sprintf("%s.%d.next", path, os.Getpid()), mode)
	if at, is := errors.AsType[*fs.PathError](err); is {
		at.Path = path // the name that the user knows
	}
	if err != nil {
		return err
	}
	err = write(next)
	if err == nil && info != nil {
		err = next.Chmod(mode)
	}
	if err == nil {
		err = errors.Join(next.Sync(), next.Close())
	}
	if err == nil {
		err = os.Rename(next.Name(), path)
	}
	if err != nil {
		_ = next.Discard() // it may be closed already
	}
	return err
}

// reopen opens what Lstat has found, and nothing that has taken its place since.
func reopen(path string, flags int, found fs.FileInfo) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !os.SameFile(info, found) {
		_ = f.Close()
		return nil, fmt.Errorf("%s was replaced while it was opened", path)
	}
	return f, nil
}

// kindOf says what a file is that cannot be written.
func kindOf(info fs.FileInfo) string {
	mode := info.Mode()
	switch {
	case mode.IsRegular():
		return "a regular file"
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case mode&fs.ModeDevice != 0:
		return "a device"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	}
	return "of type " + mode.Type().String()
}
