// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config reads, completes and checks the configuration of the proxy:
// a KubeProxyConfiguration file, the flags and their defaults. It looks at no
// kernel, no network and no other file; what a setting makes the proxy do is
// left to the packages that do it.
package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/printable"
)

// OS is the operating system a configuration is for, which need not be the one
// it is read on.
type OS string

// The systems the proxy runs on.
const (
	Linux   OS = "linux"
	Windows OS = "windows"
)

// Config is a complete configuration that passed every check.
type Config struct {
	v1alpha1.KubeProxyConfiguration
	OS OS

	// Master is the API server's address. It has a flag but no field.
	Master string
	// ProxyName is the label's value of the Services to serve, empty for those
	// without the label. It has a flag but no field.
	ProxyName string
	// IgnoreSourceRanges serves, on Windows, the addresses of load balancers with
	// loadBalancerSourceRanges to every client. It has a flag but no field.
	IgnoreSourceRanges bool
	// UDPIdleTimeout is how long mode userspace keeps a UDP client that is
	// silent. It has a flag, and had a field once.
	UDPIdleTimeout time.Duration
	// Overrides lists the flags that replaced a value of the file.
	Overrides []Override
	// Notes lists what was accepted but has no effect.
	Notes []Note
	// Warnings lists mistakes that are passed over, unless --strict-config.
	Warnings []*FieldError
}

// Override is a flag that replaced what the file says.
type Override struct{ Flag, Path, From, To string }

// String returns a sentence for people.
func (o Override) String() string {
	return fmt.Sprintf("--%s overrides %s of the configuration file: %s, not %s", o.Flag, o.Path, o.To, o.From)
}

// Note is a remark on a setting that is accepted but does nothing.
type Note struct {
	Origin string // as in FieldError
	Path   string // empty for a flag without a field
	Text   string
}

// String returns "origin: path: text", without the parts that are unknown.
func (n Note) String() string { return join(n.Origin, n.Path, n.Text) }

// FieldError tells what is wrong with one setting.
type FieldError struct {
	Origin string // "file:line", "--flag", or empty for a default
	Path   string // such as iptables.masqueradeBit
	Text   string
}

// Error returns "origin: path: text", without the parts that are unknown.
func (e *FieldError) Error() string { return join(e.Origin, e.Path, e.Text) }

func join(parts ...string) string {
	return printable.Text(strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": "))
}

// Load combines the defaults, the file that flags name, if any, and flags:
// a flag that was given goes before the file, the file before the defaults.
// The error joins everything that is wrong.
func Load(flags *Flags, os OS) (*Config, error) {
	data, err := flags.ReadFile()
	if err != nil {
		return nil, err
	}
	return LoadFrom(flags, os, data)
}

// LoadFrom is Load with what ReadFile returned.
func LoadFrom(flags *Flags, os OS, data []byte) (*Config, error) {
	file := &File{}
	var malformed error
	if flags.Config != "" {
		if file, malformed = Parse(flags.Config, data); file == nil {
			return nil, malformed
		}
		if flags.StrictConfig || file.hardFail {
			malformed = file.Strict()
		}
	}
	c, err := complete(file, flags, os, malformed)
	if malformed != nil {
		return nil, errors.Join(malformed, err)
	}
	return c, err
}

// Check completes and checks a file as if it were used without flags, and takes
// Warnings for errors.
func Check(path string, os OS) (*Config, error) {
	return Load(&Flags{Config: path, StrictConfig: true}, os)
}

// build is a configuration on its way from a file to a Config.
type build struct {
	v1alpha1.KubeProxyConfiguration
	os        OS
	file      *File
	flagged   map[string]string // flag by the path it set
	udpIdle   time.Duration
	notes     []Note
	overrides []Override
	errs      []error
	warnings  []*FieldError
}

// complete checks values also where the form of the file is wrong, so that
// its author sees everything at once; what malformed says of a field is
// enough about that field.
func complete(file *File, flags *Flags, os OS, malformed error) (*Config, error) {
	b := &build{
		KubeProxyConfiguration: *file.Values.DeepCopy(),
		os:                     os,
		file:                   file,
		flagged:                map[string]string{},
		notes:                  slices.Clone(file.Notes),
	}
	b.ignoreOtherMode(flags)
	b.applyFlags(flags)
	b.ignoreInterfaces()
	b.noteEmpty(flags)
	setDefaults(&b.KubeProxyConfiguration, os, b.given)
	b.applyPorts(flags)
	b.applyUDPIdle(flags)
	b.validate()
	b.checkProxyName(flags)
	b.noteSourceRanges(flags)
	if flags.StrictConfig || file.hardFail {
		for _, w := range b.warnings {
			b.errs = append(b.errs, w)
		}
	}
	b.errs = slices.DeleteFunc(b.errs, func(err error) bool { return sameField(err, malformed) })
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	b.inheritFields()
	b.noteUnused()
	return &Config{
		KubeProxyConfiguration: b.KubeProxyConfiguration,
		OS:                     os,
		Master:                 flags.Master,
		ProxyName:              flags.ProxyName,
		IgnoreSourceRanges:     flags.IgnoreSourceRanges,
		UDPIdleTimeout:         b.udpIdle,
		Overrides:              b.overrides,
		Notes:                  b.notes,
		Warnings:               append(slices.Clone(file.Warnings), b.warnings...),
	}, nil
}

// sameField reports that err is about a field that the joined errors are about.
func sameField(err, joined error) bool {
	var e *FieldError
	many, ok := joined.(interface{ Unwrap() []error })
	if !ok || !errors.As(err, &e) {
		return false
	}
	return slices.ContainsFunc(many.Unwrap(), func(err error) bool {
		var f *FieldError
		return errors.As(err, &f) && f.Path == e.Path
	})
}

// given reports that a flag or the file sets the field at path.
func (b *build) given(path string) bool { return b.origin(path) != "" }

// origin tells where the value at path comes from, "" for a default. An
// element of a list or map comes from where the whole does.
func (b *build) origin(path string) string {
	for {
		if flag, ok := b.flagged[path]; ok {
			return "--" + flag
		}
		if line, ok := b.file.Lines[path]; ok {
			return b.file.Name + ":" + strconv.Itoa(line)
		}
		i := strings.LastIndexAny(path, "[")
		if i < 0 {
			return ""
		}
		path = path[:i]
	}
}

func (b *build) errorf(path, format string, args ...any) {
	b.errs = append(b.errs, &FieldError{Origin: b.origin(path), Path: b.written(path), Text: fmt.Sprintf(format, args...)})
}

func (b *build) warnf(path, format string, args ...any) {
	b.warnings = append(b.warnings, &FieldError{Origin: b.origin(path), Path: b.written(path), Text: fmt.Sprintf(format, args...)})
}

func (b *build) notef(path, format string, args ...any) {
	b.notes = append(b.notes, Note{Origin: b.origin(path), Path: b.written(path), Text: fmt.Sprintf(format, args...)})
}
