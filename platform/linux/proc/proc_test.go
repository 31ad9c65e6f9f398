// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/test/kit"
)

const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func table(lines ...string) *fstest.MapFile {
	var b strings.Builder
	b.WriteString(heading)
	for i, l := range lines {
		fmt.Fprintf(&b, "%4d: %s 00000000:00000000 00:00000000 00000000     0        0 1 1 0\n", i, l)
	}
	return &fstest.MapFile{Data: []byte(b.String())}
}

// TestListeners needs a little-endian machine, as all supported ones are.
func TestListeners(t *testing.T) {
	const any6 = "00000000000000000000000000000000"
	for situation, test := range map[string]struct {
		net  fstest.MapFS
		want string
		err  string
	}{
		"nothing": {fstest.MapFS{}, "", ""},
		"both families, connected ones left out": {fstest.MapFS{
			"tcp":  table("0100007F:1F90 00000000:0000 0A", "00000000:7582 00000000:0000 0A", "0A0200C0:7583 0B0002C0:1234 01"),
			"tcp6": table(any6 + ":7584 " + any6 + ":0000 0A"),
			"udp":  table("0A0200C0:7585 0B0002C0:0035 01", "0A0200C0:7586 00000000:0000 07"),
			"udp6": table("B80D01200000000000000000" + "0A000000:7587 " + any6 + ":0000 07"),
		}, "tcp 127.0.0.1:8080, tcp 0.0.0.0:30082, tcp [::]:30084, udp 192.0.2.10:30086, udp [2001:db8::a]:30087", ""},
		"nonsense":     {fstest.MapFS{"tcp": table("here:1F90 00000000:0000 0A")}, "", `list sockets of tcp: unexpected address "here:1F90"`},
		"a short line": {fstest.MapFS{"udp": {Data: []byte(heading + "0: 1\n")}}, "", `list sockets of udp: unexpected line "0: 1"`},
	} {
		t.Run(situation, func(t *testing.T) {
			all, err := Listeners(test.net)
			text := ""
			if err != nil {
				text = err.Error()
			}
			var got []string
			for _, l := range all {
				got = append(got, l.Protocol.String()+" "+l.Addr.String())
			}
			diff := cmp.Diff(test.want, strings.Join(got, ", ")) + cmp.Diff(test.err, text)
			kit.Check(t, diff == "", "(-want +got):\n%s", diff)
		})
	}
}

func TestConflictsWith(t *testing.T) {
	for _, c := range []struct {
		own, other string
		want       bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "127.0.0.1:81", false},
		{"127.0.0.1:80", "127.0.0.2:80", false},
		{"0.0.0.0:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "0.0.0.0:80", true},
		{"[::]:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "[::]:80", true},
		{"0.0.0.0:80", "[::1]:80", false},
		{"[::1]:80", "0.0.0.0:80", false},
	} {
		l := Listener{Addr: netip.MustParseAddrPort(c.own)}
		got := l.ConflictsWith(netip.MustParseAddrPort(c.other))
		kit.Check(t, got == c.want, "%s keeps others from %s: %t, want %t", c.own, c.other, got, c.want)
	}
}

const (
	v2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	v1 = "30 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n31 23 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	// As in a container with version 1 and without a cgroup namespace.
	inside = "30 23 0:27 /kubepods/pod1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
)

func TestMemoryLimit(t *testing.T) {
	const root = "sys/fs/cgroup/"
	for name, tt := range map[string]struct {
		own, mounts string
		files       map[string]string
		limit       int64
		version     int
	}{
		"version 2":            {"0::/a/b\n", v2, map[string]string{root + "a/b/memory.max": "67108864\n"}, 67108864, 2},
		"without a limit":      {"0::/a\n", v2, map[string]string{root + "a/memory.max": "max\n"}, 0, 0},
		"of the one above":     {"0::/a/b\n", v2, map[string]string{root + "a/b/memory.max": "200\n", root + "a/memory.max": "100\n"}, 100, 2},
		"in a namespace":       {"0::/\n", v2, map[string]string{root + "memory.max": "300\n"}, 300, 2},
		"above a namespace":    {"0::/../x\n", v2, map[string]string{root + "memory.max": "300\n"}, 300, 2},
		"version 1":            {"4:memory:/a\n1:cpu:/b\n0::/\n", v1, map[string]string{root + "memory/a/memory.limit_in_bytes": "400\n"}, 400, 1},
		"version 1, unlimited": {"4:memory:/a\n", v1, map[string]string{root + "memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, 0, 0},
		"version 1, inside":    {"4:cpu,memory:/kubepods/pod1\n", inside, map[string]string{root + "memory/memory.limit_in_bytes": "500\n"}, 500, 1},
		"no cgroups":           {"", "", nil, 0, 0},
		"not to be read":       {"0::/a\n", v2, map[string]string{root + "a/memory.max": "much\n"}, 0, 0},
		"odd lines":            {"::\nx\n", "a - b\n\n- cgroup2\n", nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			files := fstest.MapFS{"proc/self/cgroup": {Data: []byte(tt.own)}, "proc/self/mountinfo": {Data: []byte(tt.mounts)}}
			for name, text := range tt.files {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
			limit, version := MemoryLimit(files)
			kit.Check(t, limit == tt.limit && version == tt.version, "%d by version %d, want %d by version %d", limit, version, tt.limit, tt.version)
		})
	}
	limit, _ := MemoryLimit(fstest.MapFS{})
	kit.Check(t, limit == 0, "%d without any file", limit)
}

const (
	uid       = "0b2ab8fd-6d5c-4b14-9f3e-3f5a4f3b6d11"
	container = "4f0f6a1c3f6f1dd6a6d7c2a7c3f4b7e1b7a1a4b5c6d7e8f90123456789abcdef"
)

func TestDescribe(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	for name, tt := range map[string]struct {
		files fstest.MapFS
		want  Process
	}{
		"a program": {
			fstest.MapFS{"7/cmdline": file("/usr/bin/kube-proxy\x00-v\x002\x00"), "7/cgroup": file("0::/system.slice/kube-proxy.service\n")},
			Process{PID: 7, Command: "/usr/bin/kube-proxy -v 2"},
		},
		"systemd's names of a pod": {
			fstest.MapFS{"7/cmdline": file("x"), "7/cgroup": file("0::/kubepods.slice/kubepods-pod0b2ab8fd_6d5c_4b14_9f3e_3f5a4f3b6d11.slice/cri-containerd-" + container + ".scope\n")},
			Process{7, "x", uid, container},
		},
		"a pod by its volumes": {
			fstest.MapFS{"7/cmdline": file("x"), "7/cgroup": file("0::/\n"), "7/mountinfo": file("1 2 8:1 /var/lib/kubelet/pods/" + uid + "/etc-hosts /etc/hosts rw - ext4 /dev/sda rw\n")},
			Process{7, "x", uid, ""},
		},
		"the kubelet, which has those of all pods": {
			fstest.MapFS{"7/cmdline": file("x"), "7/mountinfo": file("1 2 0:5 / /var/lib/kubelet/pods/" + uid + "/volumes rw - tmpfs tmpfs rw\n")},
			Process{PID: 7, Command: "x"},
		},
		"a name that moves the cursor": {fstest.MapFS{"7/cmdline": file("a\x1b[2Jb")}, Process{PID: 7, Command: "a [2Jb"}},
		"a thread of the kernel":       {fstest.MapFS{"7/cmdline": file(""), "7/comm": file("kworker\n")}, Process{PID: 7, Command: "kworker"}},
		"one that has ended":           {fstest.MapFS{}, Process{PID: 7}},
	} {
		t.Run(name, func(t *testing.T) {
			diff := cmp.Diff(tt.want, Describe(tt.files, 7))
			kit.Check(t, diff == "", "Describe (-want +got):\n%s", diff)
		})
	}
}
