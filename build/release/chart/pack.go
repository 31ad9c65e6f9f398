// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"time"

	"kubeproxy/build/release/oci"
)

// localImage is the repository in the values of the chart.
const localImage = "localhost/kubeproxy"

// released matches the version of a release.
var released = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+.*)$`)

// chartVersion returns a version of the application in the form that Helm wants, see
// https://semver.org
func chartVersion(application string) string {
	if m := released.FindStringSubmatch(application); m != nil {
		return m[1]
	}
	name := regexp.MustCompile(`[^0-9A-Za-z.-]`).ReplaceAllString(application, "-")
	if regexp.MustCompile(`^0[0-9]+$`).MatchString(name) { // a number has no zero in front
		name = "g" + name
	}
	return "0.0.0-" + name
}

// Pack returns the chart as helm package does, and the name of the file. Each file has
// the time, so that the same chart gives the same bytes.
func (s *Source) Pack(created time.Time) (name string, text []byte, err error) {
	version := chartVersion(s.Version)
	repository := cmp.Or(s.Image, localImage)
	versions := strings.NewReplacer("version: 0.0.0", "version: "+version, "appVersion: dev", fmt.Sprintf("appVersion: %q", s.Version),
		localImage+"-iptables:dev", repository+"-iptables:"+s.Version, localImage+":dev", repository+":"+s.Version)
	image := strings.NewReplacer("repository: "+localImage, "repository: "+repository)
	var files []oci.File
	root := os.DirFS(s.Folder)
	err = fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(root, path)
		switch path {
		case "Chart.yaml":
			text = []byte(versions.Replace(string(text)))
			if s.Home != "" {
				text = fmt.Appendf(text, "home: %[1]q\nsources: [%[1]q]\n", s.Home)
			}
		case "values.yaml":
			text = []byte(image.Replace(string(text)))
		case "README.md":
			text = []byte(strings.ReplaceAll(string(text), `"`+localImage+`"`, `"`+cmp.Or(s.Image, localImage)+`"`))
		}
		files = append(files, oci.File{Name: "kubeproxy/" + path, Mode: 0o644, Content: text})
		return err
	})
	if err != nil {
		return "", nil, err
	}
	text, err = compressed(files, created)
	return "kubeproxy-" + version + ".tgz", text, err
}

// PackBases returns the kustomize bases as an archive.
func (s *Source) PackBases(created time.Time) ([]byte, error) {
	bases, err := s.Bases()
	if err != nil {
		return nil, err
	}
	var files []oci.File
	for path, text := range bases {
		files = append(files, oci.File{Name: "deploy/" + path, Mode: 0o644, Content: []byte(text)})
	}
	return compressed(files, created)
}

// Compressed returns a tar.gz with files, by name.
func Compressed(files map[string][]byte, created time.Time) ([]byte, error) {
	var all []oci.File
	for name, text := range files {
		all = append(all, oci.File{Name: name, Mode: 0o644, Content: text})
	}
	return compressed(all, created)
}

func compressed(files []oci.File, created time.Time) ([]byte, error) {
	text, err := oci.Archive(files, created)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}
