// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// variant is one of several clusters that share little.
type variant struct {
	text    []byte
	want    *service.Snapshot
	samples []judge.Call
}

// many is enough apps for several transactions in each family.
const many = 300

func (c *cluster) variant(t *testing.T, n int) variant {
	t.Helper()
	var items []any
	var apps, absent []app
	webs := c.webs()
	for i := range many {
		a := app{name: fmt.Sprintf("many-%d", i), number: 100 + (i+37*n)%many}.on(webs[(i+n)%3 : 4-i*n%2]...)
		if (i+n)%5 == 0 {
			absent = append(absent, a)
			continue
		}
		if (i+n)%7 == 0 {
			a.external = "Local"
		}
		if (i+n)%11 == 0 {
			a.sticky = 60
		}
		apps = append(apps, a)
		items = append(items, a.service(), a.slice(service.IPv4), a.slice(service.IPv6))
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		t.Fatal(err)
	}
	c.write(t, "many.json", text)
	samples := c.cells(c.clientHosts()[:1], apps[0], apps[len(apps)/2], apps[len(apps)-1], absent[0], absent[len(absent)/2])
	return variant{text, c.want(t), samples}
}

// killOnce starts a proxy and kills it at some moment after its first transaction, or
// after a while if it has nothing to write.
func (c *cluster) killOnce(t *testing.T, after time.Duration) {
	t.Helper()
	before := program.Generation(t, c.Node)
	p := c.launch(t)
	kit.Until(t, "the proxy writes", func() bool {
		return program.Generation(t, c.Node) != before || p.Log.Has(`"Programmed"`)
	})
	time.Sleep(after)
	p.Kill()
}

// TestKilled kills proxies while they program. The next proxy must complete the partial
// state, whatever its desired state is.
func TestKilled(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	var variants []variant
	for n := range 3 {
		variants = append(variants, c.variant(t, n))
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	partial, at := 0, 0
	next := func() variant { // never the same twice
		at = (at + 1 + random.IntN(len(variants)-1)) % len(variants)
		c.write(t, "many.json", variants[at].text)
		return variants[at]
	}
	// About every other kill finds a partial state. If it is rarer, more rounds are
	// needed to distinguish it from never.
	const fewestRounds, enoughRounds, mostRounds = 4, 12, 60
	for round := 0; round < fewestRounds || partial < 3 && round < enoughRounds || partial == 0 && round < mostRounds; round++ {
		for range 1 + random.IntN(3) {
			v := next()
			c.killOnce(t, max(0, time.Duration(random.Int64N(int64(30*time.Millisecond)))-15*time.Millisecond))
			if c.kernel.Diff(t, v.want) != "" {
				partial++
			}
		}
		v := next()
		p := c.launch(t)
		p.AwaitLog(t, `"Programmed"`, "IPv4")
		p.AwaitLog(t, `"Programmed"`, "IPv6")
		c.awaitSnapshot(t, v.want)
		c.check(t, v.want, v.samples)
		p.Kill()
	}
	t.Logf("%d times something was half done", partial)
	if partial == 0 {
		t.Error("no proxy was killed while it programmed")
	}
}
