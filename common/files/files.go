// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

// Read returns the content of a regular file of at most limit bytes, and its FileInfo. It never
// blocks for long: what is not regular, even since just now, and files of kernel file systems such
// as procfs are rejected.
func Read(path string, limit int64) ([]byte, fs.FileInfo, error) {
	f, info, err := open(path, limit)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	// Files that can block a reader support deadlines, others return an error.
	_ = f.SetReadDeadline(time.Now().Add(maxWait))
	content := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead)) // of the size that ReadFrom needs
	if _, err := content.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(content.Len()) > limit {
		return nil, nil, fmt.Errorf("read %s: it grew past %d bytes", path, limit)
	}
	return content.Bytes(), info, nil
}

// Check returns the error that Read would return for path before it reads.
func Check(path string, limit int64) error {
	f, _, err := open(path, limit)
	if err != nil {
		return err
	}
	return f.Close()
}

// open opens a regular file. It rejects devices first, as opening alone activates some.
func open(path string, limit int64) (*os.File, fs.FileInfo, error) {
	if err := checkName(path); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if err := CheckRegular(info, limit); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	f, err := openNonblocking(path)
	if err != nil {
		return nil, nil, err
	}
	info, err = f.Stat()
	if err == nil {
		err = CheckRegular(info, limit)
	}
	if err == nil {
		err = checkNotKernelFile(f)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return f, info, nil
}

// CheckRegular returns an error unless info is of a regular file of at most limit bytes.
func CheckRegular(info fs.FileInfo, limit int64) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("is %s; want a regular file", kindOf(info))
	}
	if info.Size() > limit {
		return fmt.Errorf("has %d bytes; want at most %d", info.Size(), limit)
	}
	return nil
}

// checkWindowsName rejects a path to a device or pipe of Windows, which are not in the
// file system. Opening CON, or on some systems CON.yaml, waits for keyboard input. See
// https://learn.microsoft.com/windows/win32/fileio/naming-a-file.
func checkWindowsName(path string) error {
	path = strings.ToUpper(strings.ReplaceAll(path, "/", `\`))
	if rest, ok := strings.CutPrefix(path, `\\`); ok {
		parts := strings.Split(rest, `\`)
		if parts[0] == "." || parts[0] == "?" && len(parts) > 1 && (len(parts[1]) != 2 || parts[1][1] != ':') && parts[1] != "UNC" && !strings.HasPrefix(parts[1], "VOLUME{") {
			return errors.New("is a device or a named pipe; want a regular file")
		}
		if len(parts) > 1 && parts[1] == "PIPE" || len(parts) > 3 && parts[1] == "UNC" && parts[3] == "PIPE" {
			return errors.New("is a named pipe; want a regular file")
		}
	}
	for part := range strings.SplitSeq(path, `\`) {
		name, _, _ := strings.Cut(part, ".")
		name, _, _ = strings.Cut(name, ":")
		name = strings.TrimRight(name, " ")
		if slices.Contains([]string{"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"}, name) || isPortDevice(name) {
			return errors.New("is a device of Windows; want a regular file")
		}
	}
	return nil
}

// isPortDevice reports whether name is COM or LPT and a digit, maybe a superscript one.
func isPortDevice(name string) bool {
	digit, com := strings.CutPrefix(name, "COM")
	if !com {
		var lpt bool
		if digit, lpt = strings.CutPrefix(name, "LPT"); !lpt {
			return false
		}
	}
	return len([]rune(digit)) == 1 && strings.Contains("123456789\u00b9\u00b2\u00b3", digit)
}

// Text returns content as UTF-8 without a byte order mark. Windows PowerShell redirects
// output to files as UTF-16 with such a mark. Without a mark, Text changes nothing. See
// https://learn.microsoft.com/powershell/module/microsoft.powershell.core/about/about_character_encoding.
func Text(content []byte) []byte {
	if len(content) == 0 || content[0] < 0xef { // no mark begins so, and nothing is copied
		return content
	}
	text, _, err := transform.Bytes(unicode.BOMOverride(transform.Nop), content)
	if err != nil { // truncated within a character; the parser reports it
		return content
	}
	return text
}

// What is written here may be in a folder where others can make files, such as /tmp, and mostly
// by root. So a link at the end of a path is never followed: who made it says where it leads.

// Output is a file that a command writes as a whole.
type Output struct {
	*os.File
	made fs.FileInfo // nil for a device or pipe, which stays as it is
}

// Create makes a new file, or opens a device or a named pipe. What else exists is an error.
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
