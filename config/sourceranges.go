// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/spf13/pflag"

const sourceRangesFlag = "ignore-source-ranges"

// registerSourceRanges adds a flag that no field of the file stands for: it opens
// Services that their owners restricted, which is for each Windows node to decide.
func (f *Flags) registerSourceRanges(fs *pflag.FlagSet) {
	fs.BoolVar(&f.IgnoreSourceRanges, sourceRangesFlag, false,
		"serve addresses of load balancers that have loadBalancerSourceRanges to every client, as HNS has no source ranges; otherwise they are not served")
	group(fs, sourceRangesFlag, groupWindows)
}

// noteSourceRanges remarks on the flag where source ranges hold.
func (b *build) noteSourceRanges(f *Flags) {
	if f.IgnoreSourceRanges && b.os != Windows {
		b.notes = append(b.notes, Note{Origin: "--" + sourceRangesFlag, Text: "has no effect on " + string(b.os) + ": source ranges hold there"})
	}
}
