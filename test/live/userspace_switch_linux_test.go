// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/program"
)

// Mode userspace takes over from others without anybody's notice, from itself as
// well, and others from it, but for connections through the process that ended.
func TestUserspaceSwitch(t *testing.T) {
	t.Parallel()
	all := ways()
	for _, v := range []string{"legacy", "nft"} {
		all["userspace-"+v] = inUserspace(v)
	}
	c := newCluster(t, all["nftables"])
	web := app{name: "web", number: 10}.on(c.webs()...)
	local := app{name: "local", number: 11, external: "Local"}.on(c.Host("web-1"), c.Host("web-3"))
	c.save(t, web, local)
	p := c.start(t)
	c.settle(t)
	for _, name := range []string{"userspace-legacy", "nftables", "userspace-nft", "userspace-nft", "iptables-nft", "userspace-nft", "iptables-legacy", "userspace-legacy"} {
		loads, into := c.loads(t, web, local), all[name].userspace
		var lines talks
		if !c.mode.userspace { // what is there goes on without a process
			lines = append(c.talk(t, "tcp", web, 1), c.talk(t, "udp", web, 1)...)
		}
		p.Stop(t)
		c.become(t, all[name])
		p = c.launch(t)
		want := c.settle(t)
		lines.goOn(t)
		t.Logf("%s: %d connections made meanwhile", name, connectionsOf(loads))
		lossless(t, loads)
		c.check(t, want, c.cells(c.callers(), web, local))
		for _, f := range service.Families {
			p.AwaitLog(t, "Found what an earlier service proxy left", f.String())
			program.Await(t, "the listeners' address, if it is needed, and nothing of other modes", func() bool {
				return (c.finds(t, userspace.Remains{Family: f}) != "") == into && c.finds(t, nftablesOf(f)) != "" == (name == "nftables")
			})
		}
	}
}

func nftablesOf(f service.Family) finder {
	return nftables.Remains{Family: f, Table: nftables.TableName}
}
