// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"

	"github.com/spf13/pflag"
)

// countTraffic is the flag, and countTrafficPath the field of the file, that make the
// proxy count what Services carry. kube-proxy has neither. It warns of the field and
// ignores it.
const (
	countTraffic     = "count-traffic"
	countTrafficPath = "countTraffic"
)

func (f *Flags) registerTraffic(fs *pflag.FlagSet) {
	fs.BoolVar(&f.countTraffic, countTraffic, false, "count the connections of each Service and endpoint, for kube-proxy top and the metrics; modes ipvs and userspace count bytes, too")
	group(fs, countTraffic, groupTraffic)
}

// applyTraffic returns whether to count.
func (b *build) applyTraffic(f *Flags) bool {
	_, inFile := b.file.Lines[countTrafficPath]
	on := b.file.CountTraffic
	if f.changed(countTraffic) {
		if inFile && on != f.countTraffic {
			b.overrides = append(b.overrides, Override{countTraffic, countTrafficPath, strconv.FormatBool(on), strconv.FormatBool(f.countTraffic)})
		}
		on = f.countTraffic
		b.flagged[countTrafficPath] = countTraffic
	}
	if on && b.os == Windows {
		b.notef(countTrafficPath, "has no effect on %s: HNS does not count what a load balancer carries", b.os)
	}
	return on
}
