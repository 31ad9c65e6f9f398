// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/spf13/pflag"

const sourceRangesFlag = "ignore-source-ranges"

// registerSourceRanges adds a flag without a field in the file. It opens Services that
// their owners restricted, so each Windows node must set it on its own.
func (f *Flags) registerSourceRanges(fs *pflag.FlagSet) {
	fs.BoolVar(&f.IgnoreSourceRanges, sourceRangesFlag, false,
		"serve addresses of load balancers that have loadBalancerSourceRanges to every client, as HNS has no source ranges; otherwise they are not served")
	group(fs, sourceRangesFlag, groupWindows)
}

// noteSourceRanges adds a note about the flag on systems that implement source ranges.
func (b *build) noteSourceRanges(f *Flags) {
	if f.IgnoreSourceRanges && b.os != Windows {
		b.notes = append(b.notes, Note{Origin: "--" + sourceRangesFlag, Text: "has no effect on " + string(b.os) + ": source ranges apply there"})
	}
}
