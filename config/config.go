// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config reads, completes and validates the configuration of the proxy. A
// KubeProxyConfiguration file and flags go in, a complete Config comes out, or an error
// with everything that is wrong. The package reads no other file and neither kernel nor
// network. The effect of a setting is left to the packages that use it.
package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/errtree"
	"kubeproxy/common/printable"
)

// OS is the operating system that a configuration is for. It may differ from the one that
// reads it.
type OS string

// The supported systems.
const (
	Linux   OS = "linux"
	Windows OS = "windows"
)

// Config is a complete configuration that passed every check.
type Config struct {
	v1alpha1.KubeProxyConfiguration
	OS OS

	// Master is the address of the API server. It has a flag but no field.
	Master string
	// ProxyName is the label value of the Services to serve. Empty selects those without
	// the label. It has a flag but no field.
	ProxyName string
	// IgnoreSourceRanges applies to Windows. It serves load balancer addresses with
	// loadBalancerSourceRanges to every client. It has a flag but no field.
	IgnoreSourceRanges bool
	// UDPIdleTimeout is how long mode userspace keeps a silent UDP client. It has a flag;
	// its field was removed.
	UDPIdleTimeout time.Duration
	Switches
	// Overrides lists the flags that replaced a value of the file.
	Overrides []Override
	// Notes lists settings that were accepted but have no effect.
	Notes []Note
	// Warnings lists mistakes that are tolerated without --strict-config.
	Warnings []*FieldError
}

// Override is a flag that replaced a value of the file.
type Override struct{ Flag, Path, From, To string }

// String describes the override in a sentence.
func (o Override) String() string {
	return fmt.Sprintf("--%s overrides %s of the configuration file: %s, not %s", o.Flag, o.Path, o.To, o.From)
}

// Note is a remark about a setting that is accepted but has no effect.
type Note struct {
	Origin string // as in FieldError
	Path   string // empty for a flag without a field
	Text   string
}

// String returns "origin: path: text", without the parts that are unknown.
func (n Note) String() string { return join(n.Origin, n.Path, n.Text) }

// FieldError is a fault of one setting.
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

// Load combines the defaults, the file that flags name, if any, and flags. Flags that
// were given take precedence over the file, and the file over the defaults. The error
// joins everything that is wrong.
func Load(flags *Flags, os OS) (*Config, error) {
	data, err := flags.ReadFile()
	if err != nil {
		return nil, err
	}
	return LoadFrom(flags, os, data)
}

// LoadFrom is Load with data that was read before, such as by ReadFile.
func LoadFrom(flags *Flags, os OS, data []byte) (*Config, error) {
	file := &File{}
	var malformed error
	if flags.Config != "" {
		if file, malformed = Parse(flags.Config, data); file == nil {
			return nil, malformed
		}
		if flags.StrictConfig {
			malformed = file.Strict()
		}
	}
	c, err := complete(file, flags, os, malformed)
	if malformed != nil {
		return nil, errors.Join(malformed, err)
	}
	return c, err
}

// Refusal describes the consequence of err, which lists all faults of a configuration file
// with data. A proxy either refuses the file, or only warns unless it runs with
// --strict-config.
func Refusal(flags Flags, os OS, data []byte, err error) error {
	flags.StrictConfig = false
	if _, fatal := LoadFrom(&flags, os, data); fatal == nil && data != nil {
		return fmt.Errorf("the configuration has mistakes that the proxy only warns of without --strict-config:\n%w", err)
	}
	return fmt.Errorf("the configuration cannot be used on %s:\n%w", os, err)
}

// build is the intermediate state between a file and a Config.
type build struct {
	v1alpha1.KubeProxyConfiguration
	os        OS
	modes     []Mode // that exist
	file      *File
	strict    bool              // unknown feature gates are errors
	flagged   map[string]string // flag by the path it set
	udpIdle   time.Duration
	notes     []Note
	overrides []Override
	errs      []error
	warnings  []*FieldError
}

// complete validates values even if the form of the file is wrong, so that its author
// gets all errors at once. It drops further errors about a field that malformed is about.
func complete(file *File, flags *Flags, os OS, malformed error) (*Config, error) {
	b := &build{
		KubeProxyConfiguration: *file.Values.DeepCopy(),
		os:                     os,
		modes:                  flags.Modes,
		file:                   file,
		strict:                 flags.StrictConfig,
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
	switches := b.applySwitches(flags)
	b.validate()
	b.checkProxyName(flags)
	b.noteSourceRanges(flags)
	if flags.StrictConfig {
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
		Switches:               switches,
		Overrides:              b.overrides,
		Notes:                  b.notes,
		Warnings:               append(slices.Clone(file.Warnings), b.warnings...),
	}, nil
}

// sameField reports whether err is about the same field as one of the joined errors.
func sameField(err, joined error) bool {
	var e *FieldError
	return errors.As(err, &e) && slices.ContainsFunc(errtree.Find[*FieldError](joined), func(f *FieldError) bool { return f.Path == e.Path })
}

// given reports whether a flag or the file sets the field at path.
func (b *build) given(path string) bool { return b.origin(path) != "" }

// origin returns where the value at path comes from, or "" for a default. An element of a
// list or map has the origin of the whole.
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
	b.errs = append(b.errs, &FieldError{Origin: b.origin(path), Path: path, Text: fmt.Sprintf(format, args...)})
}

func (b *build) warnf(path, format string, args ...any) {
	b.warnings = append(b.warnings, &FieldError{Origin: b.origin(path), Path: path, Text: fmt.Sprintf(format, args...)})
}

func (b *build) notef(path, format string, args ...any) {
	b.notes = append(b.notes, Note{Origin: b.origin(path), Path: path, Text: fmt.Sprintf(format, args...)})
}
