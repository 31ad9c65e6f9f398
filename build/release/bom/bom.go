// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bom lists what a program and an image are made of, in the format CycloneDX.
//
// A binary and Debian's packages go in. The list of modules is the one that the compiler
// wrote into the binary, see runtime/debug.BuildInfo. The same input always gives the
// same text.
package bom

import (
	"debug/buildinfo"
	"io"
	"net/url"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"kubeproxy/build/release/debian"
)

// License is that of the program, by its name in https://spdx.org/licenses/
const License = "Apache-2.0"

// Subject is what a list is about.
type Subject struct {
	Name, Version, Binary string
	Created               time.Time
	Packages              []debian.Package // of an image; none for a binary alone
}

// Write writes the list of what s is made of.
func Write(out io.Writer, s *Subject) error {
	info, err := buildinfo.ReadFile(s.Binary)
	if err != nil {
		return err
	}
	of, license := cdx.ComponentTypeApplication, cdx.LicenseChoice{License: &cdx.License{ID: License}}
	if len(s.Packages) > 0 {
		of, license = cdx.ComponentTypeContainer, cdx.LicenseChoice{Expression: License + " AND " + debian.Licenses}
	}
	parts := []cdx.Component{module("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		parts = append(parts, module(d.Path, d.Version))
	}
	for _, p := range s.Packages {
		parts = append(parts, fromPackage(p))
	}
	list := cdx.NewBOM()
	list.Metadata = &cdx.Metadata{
		Timestamp: s.Created.UTC().Format(time.RFC3339),
		Component: &cdx.Component{
			BOMRef: s.Name, Type: of, Name: s.Name, Version: s.Version,
			Licenses: &cdx.Licenses{license},
		},
	}
	list.Components = &parts
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(list)
}

// module returns a Go module, see
// https://github.com/package-url/purl-spec/blob/main/types-doc/golang-definition.md
func module(path, version string) cdx.Component {
	purl := "pkg:golang/" + path + "@" + url.QueryEscape(version)
	return cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: purl}
}

func fromPackage(p debian.Package) cdx.Component {
	purl := "pkg:deb/debian/" + p.Name + "@" + url.QueryEscape(p.Version) + "?arch=" + p.Arch + "&distro=" + debian.Release
	return cdx.Component{
		BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: p.Name, Version: p.Version, PackageURL: purl,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: p.SHA256}},
	}
}
