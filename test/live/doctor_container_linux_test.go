// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// container runs what follows in a file system like that of a container: an overlay, with
// what programs of this test need from outside. LOCK is a command that runs before.
const container = `set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
for dir in proc sys dev tmp; do mount --rbind /$dir /mnt/root/$dir; done
touch /run/xtables.lock /mnt/root/run/xtables.lock
LOCK
exec chroot /mnt/root "$@"`

// TestDoctorInAContainer checks that doctor distinguishes a container with a lock of its own
// from one that has the lock of the host.
func TestDoctorInAContainer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, switchableModes()["iptables-legacy"])
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	for lock, want := range map[string]bool{":": true, "mount --bind /run/xtables.lock /mnt/root/run/xtables.lock": false} {
		cmd := c.command(append([]string{"doctor", "-o=json", "--manifests=" + c.dir}, c.mode.flags...)...)
		prefix := []string{"unshare", "--mount", "sh", "-c", strings.Replace(container, "LOCK", lock, 1), "sh"}
		path, err := exec.LookPath(prefix[0])
		kit.Must(t, err)
		cmd.Args, cmd.Path = slices.Concat(prefix, []string{cmd.Path}, cmd.Args[1:]), path
		var out strings.Builder
		cmd.Stdout = &out
		said, err := program.Run(t, c.Node, cmd)
		var d diagnosis
		if json.Unmarshal([]byte(out.String()), &d) != nil {
			t.Fatalf("doctor in a container: %v\n%s%s", err, out.String(), said)
		}
		if d.has("xtables-lock") != want {
			t.Errorf("after %q: found %v, want %v: %s", lock, !want, want, d)
		}
	}
}
