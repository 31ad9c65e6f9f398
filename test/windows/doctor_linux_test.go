// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"kubeproxy/test/hns"
	"kubeproxy/test/netlab"
	"kubeproxy/test/wine"
)

// diagnose runs doctor and returns a line for each finding: its id and what it says. It
// leaves out the extension VFP, a driver that Wine does not have.
func (n *node) diagnose(t *testing.T, flags ...string) (found []string, code int) {
	t.Helper()
	code, out := n.run(t, append([]string{"doctor", "-o=json", "--hostname-override=" + netlab.NodeName, "--cluster-cidr=10.244.0.0/16", "--manifests=" + wine.File(n.dir)}, flags...)...)
	var r struct {
		Findings []struct{ ID, What string }
		Checks   []struct{ Name, State, Note string }
	}
	if i := strings.Index(out, "{"); i < 0 || json.Unmarshal([]byte(out[i:]), &r) != nil {
		t.Fatalf("exit %d\n%s", code, out)
	}
	vfp := false
	for _, f := range r.Findings {
		if f.ID == "vfp-extension" {
			vfp = true
			continue
		}
		if f.ID != "node-unknown" { // Wine lists the addresses of another machine
			found = append(found, f.ID+": "+f.What)
		}
	}
	if !vfp {
		t.Errorf("the extension is not missed: %s", out)
	}
	for _, c := range r.Checks {
		if c.State == "failed" {
			t.Errorf("%s could not look: %s", c.Name, c.Note)
		}
	}
	return found, code
}

// TestDoctor makes faults of HNS and of the configuration. Doctor names each.
func TestDoctor(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 10, Minor: 3}})
	web, _, _ := shop()
	n.save(t, web)
	expect := func(what string, found []string, words ...string) {
		t.Helper()
		for _, w := range words {
			if !slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, w) }) {
				t.Errorf("%s: no %q in %q", what, w, found)
			}
		}
		if len(found) != len(words) {
			t.Errorf("%s: %d findings, want %d: %q", what, len(found), len(words), found)
		}
	}
	found, code := n.diagnose(t, "--enable-dsr")
	expect("all is well", found)
	if code != 1 { // for the extension
		t.Errorf("exit %d, want 1", code)
	}
	found, _ = n.diagnose(t)
	expect("without direct server return, and ports enough", found)
	found, _ = n.diagnose(t, "--enable-dsr", "--network-name=none")
	expect("a network that is missing", found, `hns-network: waiting for network "none"`)
	found, _ = n.diagnose(t, "--enable-dsr", "--source-vip=192.0.2.1")
	expect("a source VIP outside", found, "source-vip: --source-vip or winkernel.sourceVip: 192.0.2.1 is in no subnet")
	calls := n.hns.Calls()
	for name, count := range calls {
		if count > 0 && (strings.HasPrefix(name, "HcnCreate") || strings.HasPrefix(name, "HcnDelete") || strings.HasPrefix(name, "HcnModify")) {
			t.Errorf("doctor changed HNS: %s", calls)
		}
	}

	n.start(t, "--enable-dsr")
	n.awaitProgrammed(t, web)
	found, _ = n.diagnose(t, "--enable-dsr")
	expect("while the proxy runs", found)
	n.stop(t)
}

// TestDoctorOldHNS asks for what the HNS lacks.
func TestDoctorOldHNS(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 10, Minor: 1}})
	found, _ := n.diagnose(t, "--enable-dsr")
	if len(found) != 1 || !strings.Contains(found[0], "hns-version: HNS 10.1 has no direct server return") {
		t.Errorf("found %q", found)
	}
	_, text := n.run(t, "doctor", "--hostname-override="+netlab.NodeName, "--manifests="+wine.File(n.dir))
	t.Logf("\n%s", text)
}
