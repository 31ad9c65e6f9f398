// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/service"
	"kubeproxy/test/cluster"
	"kubeproxy/test/program"
)

// testExplain asks the running proxy about connections of pods by name. It has the rights
// of the deployment, which do not include pods. So it knows only endpoints, and the
// command has to look up other pods.
func testExplain(t *testing.T, w *fixture) {
	slice := newSlice("web", service.IPv4, w.webs(3)...)
	for i := range slice.Endpoints {
		slice.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: space, Name: []string{"web-1", "web-2", "web-3"}[i]}
	}
	w.set(t, newService("web"), slice)
	pods := w.api.Client.CoreV1().Pods(space)
	batch, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "batch"},
		Spec:       corev1.PodSpec{NodeName: "node-b", Containers: []corev1.Container{{Name: "batch", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		now := int64(0)
		if err := pods.Delete(t.Context(), "batch", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Error(err)
		}
	}()
	batch.Status.PodIPs = []corev1.PodIP{{IP: "10.244.2.77"}}
	batch.Status.PodIP = "10.244.2.77"
	if _, err := pods.UpdateStatus(t.Context(), batch, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := w.start(t)
	admin := w.kubeconfig(t, cluster.Login{})
	for _, tc := range []struct {
		pod, kubeconfig string
		code            int
		want            string
	}{
		{"web-1", "", 0, "10.244.1.11 -> "},
		{"web-3", "", 0, "pod " + space + "/web-3 runs on node node-b"},
		{"batch", admin, 0, "10.244.2.77 -> "},
		{"batch", admin, 0, "pod " + space + "/batch runs on node node-b"},
		{"batch", w.login, 2, "want the right to get pods in namespace " + space},
		{"batch", "", 2, "want --kubeconfig FILE"},
		{"nobody", admin, 2, "has no pod " + space + "/nobody"},
	} {
		cmd := exec.Command(kubeProxy.Path, "explain", "--kubeconfig="+tc.kubeconfig, "pod/"+space+"/"+tc.pod, "svc/"+space+"/web:"+portName(corev1.ProtocolTCP))
		cmd.Env = []string{"HOME=" + t.TempDir()}
		out, err := program.Run(t, w.Node, cmd)
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(strings.Join(strings.Fields(out), " "), tc.want) {
			t.Errorf("%s with kubeconfig %q: exit %d, want %d and %q; got\n%s", tc.pod, tc.kubeconfig, code, tc.code, tc.want, out)
		}
	}
	p.Stop(t)
}
