// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// change is a version of a Service, possibly with other Services, saved in one file.
type change struct {
	name string
	app  app
	// rename gives its ports other names.
	rename bool
}

// changes are versions in which every client has an endpoint. Each differs from the one
// before.
func (c *cluster) changes() []change {
	one, two, three := c.Host("web-1"), c.Host("web-2"), c.Host("web-3")
	web := app{name: "web", number: 10}.on(one, two, three)
	moved, local, inside, outside, sticky, open := web, web, web, web, web, web
	moved.name = "other"
	local.internal, local.external = "Local", "Local"
	inside.internal, outside.external = "Local", "Local"
	sticky.sticky = 60
	open.ranges = []string{"192.0.2.0/24", "2001:db8:2::/64"}
	leaving := app{name: "web", number: 10}.with(one, terminating).with(three, terminating)
	return []change{
		{name: "ports get other names", app: web, rename: true},
		{name: "and back", app: web},
		{name: "another Service gets the addresses", app: moved},
		{name: "and back", app: web},
		{name: "internal policy Local", app: inside},
		{name: "internal policy Cluster", app: web},
		{name: "both policies Local", app: local},
		{name: "external policy Local alone", app: outside},
		{name: "both policies Cluster", app: web},
		{name: "session affinity", app: sticky},
		{name: "none", app: web},
		{name: "source ranges", app: open},
		{name: "other endpoints", app: web.on(one)},
		{name: "all are leaving", app: leaving},
		{name: "they are back", app: web},
	}
}

func (x change) text(t *testing.T) []byte {
	text := x.app.yaml(t)
	if x.rename {
		for _, name := range []string{"lines", "packets", "messages"} {
			text = bytes.ReplaceAll(text, []byte(`"`+name+`"`), []byte(`"`+name+`-too"`))
			text = bytes.ReplaceAll(text, []byte(": "+name+"\n"), []byte(": "+name+"-too\n"))
		}
	}
	return text
}

// TestChangesUnderLoad changes a Service in every way. As long as it has an endpoint, no
// connection may be refused or lost. A UDP datagram may be lost if its endpoint is
// removed before it answers, so UDP has tests of its own.
func TestChangesUnderLoad(t *testing.T) {
	withoutIPVS(t, changesUnderLoad)
}

func TestIPVSChangesUnderLoad(t *testing.T) { withIPVS(t, changesUnderLoad) }

func TestUserspaceChangesUnderLoad(t *testing.T) { withUserspace(t, changesUnderLoad) }

func changesUnderLoad(t *testing.T, m mode) {
	c := newCluster(t, m)
	web := app{name: "web", number: 10}.on(c.webs()[:3]...)
	c.save(t, web)
	c.start(t)
	loads := slices.DeleteFunc(c.loadsAt(t, 10*time.Millisecond, web), func(l load) bool {
		if l.call.Proto == service.UDP {
			l.Stop()
		}
		return l.call.Proto == service.UDP
	})
	lost := map[int]int{}
	for _, x := range c.changes() {
		c.write(t, "web.yaml", x.text(t))
		c.awaitProgrammed(t)
		made := make([]int, len(loads))
		for i, l := range loads {
			made[i] = l.Report().Connections
		}
		kit.Until(t, "clients connect once more", func() bool {
			for i, l := range loads {
				if l.Report().Connections < made[i]+2 {
					return false
				}
			}
			return true
		})
		for i, l := range loads {
			if r := l.Report(); r.Lost() > lost[i] {
				t.Errorf("%s: %s: %s", x.name, l.call, r)
				lost[i] = r.Lost()
			}
		}
	}
	for _, l := range loads {
		l.Stop()
	}
}
