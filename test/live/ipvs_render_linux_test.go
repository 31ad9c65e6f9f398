// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What render prints is taken by ip, ipvsadm and nft, comes back from ipvsadm as
// it was, and is what the proxy makes.
func TestIPVSRender(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) {
		m.flags, m.scheduler = append(m.flags, "--ipvs-scheduler=mh"), "mh"
		c := newCluster(t, m)
		c.save(t, c.matrix()...)
		args := append([]string{"render", "--manifests=" + c.dir, "--hostname-override=node-a"}, m.flags...)
		out, err := exec.Command(kubeProxy.Path, args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		text := string(out)
		var taken []string
		for part := range strings.SplitSeq(text, "# for ") {
			command, input, _ := strings.Cut(part, "\n")
			if command != "" {
				taken = append(taken, command)
				c.sh(t, "cat <<'INPUT' | "+command+"\n"+input+"INPUT\n")
			}
		}
		if want := []string{"ip -batch -", "grep ^- | ipvsadm -R", "ip -6 -batch -", "grep ^- | ipvsadm -R", "nft -f -"}; !slices.Equal(taken, want) {
			t.Errorf("there are parts for %q, want %q", taken, want)
		}
		rendered := virtualServers(text)
		if got := virtualServers(c.sh(t, "ipvsadm -S -n\n")); len(rendered) == 0 || !slices.Equal(got, rendered) {
			t.Errorf("ipvsadm was given\n%s\nand has\n%s", strings.Join(rendered, "\n"), strings.Join(got, "\n"))
		}
		c.sh(t, "ipvsadm -C\nip link delete kube-ipvs0\nnft delete table ip kube-ipvs\nnft delete table ip6 kube-ipvs\n")
		c.start(t)
		made := virtualServers(c.sh(t, "ipvsadm -S -n\n"))
		for _, line := range rendered {
			if !slices.Contains(made, line) {
				t.Errorf("the proxy did not make %s", line)
			}
		}
	})
}

// virtualServers are the lines of ipvsadm in text, sorted.
func virtualServers(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "-") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	slices.Sort(lines)
	return lines
}
