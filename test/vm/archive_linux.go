// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// tree holds the content of an image, by path in the machine.
type tree map[string]entry

// entry is a file of this machine, a text, or a link.
type entry struct {
	from string // path of a file on this machine
	text string
	link string // target of a symbolic link
	exec bool
	dir  bool
}

// guestPath returns the path in the machine for a path on this machine. Both have a
// merged /usr. An old path such as /bin, as a folder of its own, would hide the link at
// its place.
func guestPath(path string) string {
	for _, old := range []string{"/bin/", "/sbin/", "/lib/", "/lib64/"} {
		if strings.HasPrefix(path, old) {
			return "/usr" + path
		}
	}
	return path
}

// sorted returns the paths in t.
func (t tree) sorted() []string { return slices.Sorted(maps.Keys(t)) }

// add adds a file of this machine, or a folder with all its content, to t.
func (t tree) add(from, to string) error {
	from, err := filepath.EvalSymlinks(from)
	if err != nil {
		return err
	}
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		if d.Type() == fs.ModeSymlink && file != from {
			return t.add(file, path.Join(to, rest))
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		t[guestPath(path.Join(to, rest))] = entry{from: file, exec: info.Mode()&0o111 != 0, dir: d.IsDir()}
		return nil
	})
}

// write writes t as a cpio archive of format newc, with the folders of each entry. The
// kernel unpacks it, see
// https://docs.kernel.org/driver-api/early-userspace/buffer-format.html
func (t tree) write(out io.Writer) error {
	all := maps.Clone(t)
	for name := range t {
		for dir := path.Dir(name); dir != "/"; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = entry{dir: true}
			}
		}
	}
	w := &archive{out: bufio.NewWriterSize(out, 1<<20)}
	for _, name := range all.sorted() {
		if err := w.entry(strings.TrimPrefix(name, "/"), all[name]); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	w.header("TRAILER!!!", 0, 0)
	return cmp.Or(w.err, w.out.Flush())
}

// archive writes entries one after the other.
type archive struct {
	out    *bufio.Writer
	number int
	err    error
}

func (w *archive) entry(name string, e entry) error {
	switch {
	case e.dir:
		w.header(name, unixDir, 0)
		return w.err
	case e.link != "":
		w.header(name, unixLink, int64(len(e.link)))
		return w.body(strings.NewReader(e.link), int64(len(e.link)))
	}
	mode := unixFile
	if e.exec {
		mode |= 0o111
	}
	if e.from == "" {
		w.header(name, mode, int64(len(e.text)))
		return w.body(strings.NewReader(e.text), int64(len(e.text)))
	}
	f, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	w.header(name, mode, info.Size())
	return w.body(f, info.Size())
}

// Kinds of files, with their permissions.
const (
	unixFile = 0o100644
	unixDir  = 0o040755
	unixLink = 0o120777
)

// header writes the part before the content: thirteen numbers and the name, padded to a
// multiple of four bytes.
func (w *archive) header(name string, mode int, size int64) {
	w.number++
	text := "070701"
	for _, n := range []int64{int64(w.number), int64(mode), 0, 0, 1, 0, size, 0, 0, 0, 0, int64(len(name) + 1), 0} {
		text += fmt.Sprintf("%08X", n)
	}
	text += name + "\x00"
	_, err := w.out.WriteString(text + padding(int64(len(text))))
	w.err = cmp.Or(w.err, err)
}

func (w *archive) body(content io.Reader, size int64) error {
	n, err := io.Copy(w.out, content)
	if err == nil && n != size {
		err = fmt.Errorf("it had %d bytes and then %d", size, n)
	}
	_, perr := w.out.WriteString(padding(size))
	w.err = cmp.Or(w.err, err, perr)
	return w.err
}

func padding(size int64) string { return strings.Repeat("\x00", int(-size&3)) }
