// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

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
			if diff := cmp.Diff(tt.want, Describe(tt.files, 7)); diff != "" {
				t.Errorf("Describe (-want +got):\n%s", diff)
			}
		})
	}
}
