// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// diagnosis is what kube-proxy doctor -o json prints.
type diagnosis struct {
	code     int
	Findings []struct{ ID, Subject, What, Fix, Advice string }
	Checks   []struct{ Name, State, Note string }
}

// find returns what the finding of this id says, empty if there is none.
func (d *diagnosis) find(id string) string {
	for _, f := range d.Findings {
		if f.ID == id {
			return strings.Join([]string{f.Subject, f.What, f.Fix, f.Advice}, "; ")
		}
	}
	return ""
}

// diagnose runs doctor on the node with the login l.
func (w fixture) diagnose(t *testing.T, l cluster.Login, args ...string) *diagnosis {
	t.Helper()
	cmd := exec.Command(kubeProxy.Path, append([]string{"doctor", "-o=json", "--kubeconfig=" + w.kubeconfig(t, l), "--cluster-cidr=" + netlab.ClusterCIDR, "--hostname-override=" + netlab.NodeName, "--timeout=5s"}, args...)...)
	var out strings.Builder
	cmd.Stdout = &out
	said, err := program.Run(t, w.lab.Node, cmd)
	d := &diagnosis{}
	if cmd.ProcessState == nil || json.Unmarshal([]byte(out.String()), d) != nil {
		t.Fatalf("doctor: %v\n%s%s", err, out.String(), said)
	}
	d.code = cmd.ProcessState.ExitCode()
	return d
}

// expect checks that doctor finds id with these words, or with no words that it does not.
func (d *diagnosis) expect(t *testing.T, id string, words ...string) {
	t.Helper()
	text := d.find(id)
	if len(words) == 0 && text != "" {
		t.Errorf("found %s: %s", id, text)
	}
	for _, word := range words {
		if d.code == 0 || !strings.Contains(text, word) {
			t.Errorf("exit %d, %s: %q, want %q in it and another exit code than 0; all: %+v", d.code, id, text, word, d.Findings)
		}
	}
}

// TestDoctor asks a real API server about an account without rights and with those of the
// deployment, and about a Node that is missing or of another machine.
func TestDoctor(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	w.set(t, newService("web"))
	d := w.diagnose(t, deployed)
	d.expect(t, "missing-rights", "may not list services, watch services, list endpointslices", "--serviceaccount=kube-system:kubeproxy")

	objects, err := os.ReadFile(filepath.Join("..", "..", "build", "deploy", "linux", "objects.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	account, _, _ := strings.Cut(string(objects), "---\napiVersion: apps/v1\n") // without the DaemonSet
	if err := w.Apply(t.Context(), []byte(account)); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the rights of the deployment", func() bool { d = w.diagnose(t, deployed); return d.find("missing-rights") == "" })
	d.expect(t, "clock-skew")
	d.expect(t, "node-unknown", "there is no Node of the name "+netlab.NodeName)

	other := newNode()
	other.Name = "node-z"
	other.Status.Addresses[0].Address, other.Status.Addresses[1].Address = "192.0.2.99", "2001:db8:2::99"
	w.set(t, newNode(), other)
	w.diagnose(t, deployed).expect(t, "node-unknown")
	w.diagnose(t, deployed, "--hostname-override=node-z").expect(t, "node-unknown", "192.0.2.99", "--hostname-override="+netlab.NodeName)
}

// TestDoctorOfClocks asks a real API server whose answers have another date.
func TestDoctorOfClocks(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	w.set(t, newNode())
	front, err := w.NewFaultProxy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	for _, tt := range []struct {
		by   time.Duration
		want []string
	}{{0, nil}, {time.Hour, []string{"h0m", "behind that of the API server"}}, {-10 * time.Minute, []string{"10m", "ahead of that"}}} {
		front.SetFault(cluster.Fault{Skew: tt.by})
		w.diagnose(t, cluster.Login{Server: front.URL}).expect(t, "clock-skew", tt.want...)
	}
}
