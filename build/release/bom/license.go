// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package bom

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/licensecheck"
	"golang.org/x/mod/module"
)

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
