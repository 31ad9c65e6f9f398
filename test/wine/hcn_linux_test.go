// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/test/hns"
	"kubeproxy/test/netlab"
)

// hcsshim is the module whose package hcn is the client of HNS.
const hcsshim = "github.com/Microsoft/hcsshim@v0.15.0"

// firstInterfaceTests are hcsshim's tests of HNS's first interface, of which the
// simulator has only the version request.
const firstInterfaceTests = "^(TestEndpoint|TestEndpointGetAll|TestEndpointStatsAll|TestNetwork|TestNetworkGetAll|TestAccelnetNnvManagementMacAddresses)$"

// modifyTest is hcsshim's test of a load balancer that changes, which works in 15.5 only.
const modifyTest = "|^TestCreateUpdateDeleteLoadBalancer$"

// TestConformance runs hcsshim's own tests for a real HNS, to show that the simulator
// behaves like one for hcsshim. They require the same spelling of identities in an object
// and in its references.
func TestConformance(t *testing.T) {
	exe := buildHcnTests(t)
	w := Start(t, Options{})
	for _, v := range hns.Versions() {
		for _, spelling := range []hns.Case{hns.LowerCase, hns.UpperCase} {
			o := hns.Options{Version: v, Case: spelling, Steady: true}
			t.Run(v.String()+string(spelling), func(t *testing.T) { conform(t, w, exe, o) })
		}
	}
}

func conform(t *testing.T, w *Wine, exe string, o hns.Options) {
	s := hns.Start(t, o)
	skip := firstInterfaceTests + modifyTest
	if o.Version == (hns.Version{Major: 15, Minor: 5}) {
		skip = firstInterfaceTests
	}
	code, output, err := w.Run(t.Context(), Program{
		Path: exe, Args: []string{"-test.v", "-test.skip=" + skip}, Env: []string{"HNS_SIM_ADDR=" + s.Addr},
	})
	if n := strings.Count(output, "--- PASS: "); err != nil || code != 0 || n < 70 || strings.Contains(output, "--- SKIP: ") {
		t.Errorf("exit code %d, %v, %d tests passed:\n%s", code, err, n, output)
	}
	for kind, objects := range s.State().Objects {
		if len(objects) != 0 {
			t.Errorf("%d objects left of kind %s", len(objects), kind)
		}
	}
}

// buildHcnTests builds the tests in the module cache: the module has requirements of its
// own.
func buildHcnTests(t *testing.T) string {
	t.Helper()
	if _, err := installed(); err != nil {
		t.Skipf("%v", err)
	}
	text, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", hcsshim).Output()
	if err != nil {
		t.Fatalf("go mod download %s: %v", hcsshim, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(text, &module); err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(t.TempDir(), "hcn.test.exe")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-tags=integration", "-o", exe, "./hcn")
	cmd.Dir = module.Dir
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build hcsshim's tests: %v\n%s", err, text)
	}
	return exe
}

// TestHNSUnreachable runs a program without an HNS. It must get an error, not an empty
// list of objects.
func TestHNSUnreachable(t *testing.T) {
	exe := buildHcnTests(t)
	w := Start(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), awaitTimeout)
	defer cancel()
	for env, want := range map[string]string{
		"":                                   "(0x6ba)",
		"HNS_SIM_ADDR=sesame":                "(0x6ba)",
		"HNS_SIM_ADDR=127.0.0.1:1":           "(0x6ba)",
		"HNS_SIM_ADDR=" + closingListener(t): "(0x6be)",
		"HNS_SIM_ADDR=" + garbageListener(t): "(0x6be)",
	} {
		code, output, err := w.Run(ctx, Program{Path: exe, Args: []string{"-test.run=^TestListNetwork$"}, Env: []string{env}})
		if err != nil || code != 1 || !strings.Contains(output, want) {
			t.Errorf("%q: exit code %d, %v, want %q:\n%s", env, code, err, want, output)
		}
	}
}

// closingListener closes each connection; garbageListener first answers with bytes that
// are no frame.
func closingListener(t *testing.T) string { return answering(t, "") }
func garbageListener(t *testing.T) string { return answering(t, "\xff\xff\xff\xff") }

func answering(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go netlab.Serve(l, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4))
		_, _ = c.Write([]byte(answer))
	})
	return l.Addr().String()
}
