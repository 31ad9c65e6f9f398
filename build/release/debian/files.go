// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"strings"

	"kubeproxy/build/release/oci"
)

// unwanted are the parts of packages that no program in an image opens.
var unwanted = []string{
	"usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/", "usr/share/doc-base/",
	"usr/share/iptables/", "usr/share/bash-completion/", "etc/init.d/", "etc/default/", "usr/include/",
}

// Files returns the files of a package that an image has: programs, libraries, licences,
// and the record by which scanners know the package.
func (c *Cache) Files(ctx context.Context, p Package) ([]oci.File, error) {
	deb, err := c.Fetch(ctx, p)
	if err != nil {
		return nil, err
	}
	text, err := output(exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb))
	if err != nil {
		return nil, err
	}
	control, err := output(exec.CommandContext(ctx, "dpkg-deb", "-f", deb))
	if err != nil {
		return nil, err
	}
	files, err := wantedFiles(p.Name, strings.NewReader(text))
	record := oci.File{Name: "var/lib/dpkg/status.d/" + p.Name, Mode: 0o644, Content: []byte(control)}
	return append(files, record), err
}

func wantedFiles(pkg string, archive io.Reader) ([]oci.File, error) {
	var files []oci.File
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		f := oci.File{Name: merged(path.Clean(h.Name)), Mode: h.Mode & 0o755, Link: h.Linkname}
		if h.Typeflag == tar.TypeDir || !wanted(pkg, f.Name) {
			continue
		}
		switch h.Typeflag {
		case tar.TypeReg:
			f.Content, err = io.ReadAll(r)
		case tar.TypeSymlink:
		default:
			err = fmt.Errorf("%s: neither a file nor a link", h.Name)
		}
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
}

func wanted(pkg, name string) bool {
	if pkg == "base-files" {
		return strings.HasSuffix(name, "/os-release")
	}
	if strings.HasPrefix(name, "usr/share/doc/") {
		return path.Base(name) == "copyright"
	}
	if strings.Contains(name, "/gconv/") {
		return false
	}
	for _, u := range unwanted {
		if strings.HasPrefix(name, u) {
			return false
		}
	}
	return true
}

// old are the folders of the root that Debian has as links below usr.
var old = []string{"bin", "sbin", "lib", "lib64"}

// merged returns the place of a file below usr.
func merged(name string) string {
	for _, o := range old {
		if strings.HasPrefix(name, o+"/") {
			return "usr/" + name
		}
	}
	return name
}

// Root returns the links that a root with a merged /usr has.
func Root() []oci.File {
	var links []oci.File
	for _, o := range old {
		links = append(links, oci.File{Name: o, Link: "usr/" + o})
	}
	return links
}
