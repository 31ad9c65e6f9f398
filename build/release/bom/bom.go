// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bom lists what a program and an image are made of, in the format CycloneDX.
//
// A binary goes in, and of an image its digest and Debian's packages. The list of modules is the one that
// the compiler wrote into the binary, see runtime/debug.BuildInfo, with the sums that Go verified. Licenses are
// from the modules' own files, in the cache from which they were built. The same input always gives the same text.
package bom

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licensecheck"
	"github.com/google/uuid"
	"golang.org/x/mod/module"

	"kubeproxy/build/release/debian"
)

// License is that of the program, by its name in https://spdx.org/licenses/
const License = "Apache-2.0"

// Subject is what a list is about.
type Subject struct {
	Name, Version, Binary string
	Created               time.Time
	Image                 *Image // nil for a binary
}

// Image is an image for one system.
type Image struct {
	Repository, Tag string // with the registry
	OS, Arch        string
	Digest          string           // of its manifest, the hexadecimal digits of a SHA-256
	Packages        []debian.Package // in it
}

// Text returns the list of what s is made of.
func Text(s *Subject) ([]byte, error) {
	program, modules, err := s.program()
	if err != nil {
		return nil, err
	}
	about, parts := program, modules
	graph := []cdx.Dependency{dependsOn(program, modules)}
	if s.Image != nil {
		var packages []cdx.Component
		for _, p := range s.Image.Packages {
			packages = append(packages, fromPackage(p))
		}
		content := append([]cdx.Component{program}, packages...)
		about, parts = s.image(), append(content, modules...)
		graph = append([]cdx.Dependency{dependsOn(about, content)}, graph...)
	}
	list := cdx.NewBOM()
	list.Metadata = &cdx.Metadata{Timestamp: s.Created.UTC().Format(time.RFC3339), Component: &about}
	list.Components, list.Dependencies = &parts, &graph
	text, err := encode(list)
	if err != nil {
		return nil, err
	}
	// A number that follows from the content stays the same in each build.
	list.SerialNumber = uuid.NewSHA1(uuid.NameSpaceOID, text).URN()
	return encode(list)
}

func encode(list *cdx.BOM) ([]byte, error) {
	var out bytes.Buffer
	err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(list)
	return out.Bytes(), err
}

// program returns the binary, and the modules that it has.
func (s *Subject) program() (cdx.Component, []cdx.Component, error) {
	text, err := os.ReadFile(s.Binary)
	if err != nil {
		return cdx.Component{}, nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(text))
	if err != nil {
		return cdx.Component{}, nil, err
	}
	name := s.Name
	if s.Image != nil {
		name = "kube-proxy"
	}
	program := cdx.Component{
		BOMRef: name, Type: cdx.ComponentTypeApplication, Name: name, Version: s.Version,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: License}}}, Hashes: hashes(sha256.Sum256(text)),
	}
	cache, err := moduleCache()
	if err != nil {
		return cdx.Component{}, nil, err
	}
	modules := []cdx.Component{fromModule(&debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")})}
	modules[0].Licenses = &cdx.Licenses{{License: &cdx.License{ID: "BSD-3-Clause"}}} // see LICENSE of Go
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		m := fromModule(d)
		if m.Licenses, err = cache.licenses(d); err != nil {
			return cdx.Component{}, nil, err
		}
		modules = append(modules, m)
	}
	return program, modules, nil
}

// image returns the image of s, see
// https://github.com/package-url/purl-spec/blob/main/types-doc/oci-definition.md
func (s *Subject) image() cdx.Component {
	i, licenses := s.Image, cdx.Licenses{{License: &cdx.License{ID: License}}}
	if len(i.Packages) > 0 {
		licenses = cdx.Licenses{{Expression: License + " AND " + debian.Licenses}}
	}
	purl := "pkg:oci/" + s.Name + "@sha256%3A" + i.Digest + "?arch=" + i.Arch + "&os=" + i.OS + "&repository_url=" + url.QueryEscape(i.Repository) + "&tag=" + url.QueryEscape(i.Tag)
	return cdx.Component{
		BOMRef: purl, Type: cdx.ComponentTypeContainer, Name: s.Name, Version: s.Version, PackageURL: purl, Licenses: &licenses,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: i.Digest}},
	}
}

// dependsOn returns that a component needs parts.
func dependsOn(c cdx.Component, parts []cdx.Component) cdx.Dependency {
	refs := []string{}
	for _, p := range parts {
		refs = append(refs, p.BOMRef)
	}
	return cdx.Dependency{Ref: c.BOMRef, Dependencies: &refs}
}

// fromModule returns a Go module, see
// https://github.com/package-url/purl-spec/blob/main/types-doc/golang-definition.md
// Its hash is the one in go.sum, of a list of the module's files with their hashes.
func fromModule(m *debug.Module) cdx.Component {
	purl := "pkg:golang/" + m.Path + "@" + url.QueryEscape(m.Version)
	c := cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, PackageURL: purl}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) == sha256.Size {
		c.Hashes = hashes([sha256.Size]byte(sum))
	}
	return c
}

func hashes(sum [sha256.Size]byte) *[]cdx.Hash {
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
}

func fromPackage(p debian.Package) cdx.Component {
	purl := "pkg:deb/debian/" + p.Name + "@" + url.QueryEscape(p.Version) + "?arch=" + p.Arch + "&distro=" + debian.Release
	return cdx.Component{
		BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: p.Name, Version: p.Version, PackageURL: purl,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: p.SHA256}},
	}
}

// cache is the folder in which Go keeps modules.
type cache string

func moduleCache() (cache, error) {
	out, err := exec.Command("go", "env", "GOMODCACHE").Output()
	return cache(strings.TrimSpace(string(out))), err
}

// known is how much of a text must be of licenses, in per cent. Notices of copyright come before some.
const known = 75

// licenses returns those of a module, nil if its files have none that is known.
func (c cache) licenses(m *debug.Module) (*cdx.Licenses, error) {
	path, err := module.EscapePath(m.Path)
	if err != nil {
		return nil, err
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(string(c), filepath.FromSlash(path)+"@"+version)
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("module %s %s is not in the cache of modules, from which its license is read: %w; want go mod download", m.Path, m.Version, err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "LICEN[CS]E*"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		found := licensecheck.Scan(text)
		for _, l := range found.Match {
			if found.Percent >= known && !l.IsURL && !slices.Contains(names, l.ID) {
				names = append(names, l.ID)
			}
		}
	}
	switch len(names) {
	case 0:
		return nil, nil
	case 1:
		return &cdx.Licenses{{License: &cdx.License{ID: names[0]}}}, nil
	}
	return &cdx.Licenses{{Expression: strings.Join(names, " AND ")}}, nil
}
