// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"kubeproxy/test/kit"
)

// TestDoctorMistakes checks that a command line which cannot be used is no finding.
func TestDoctorMistakes(t *testing.T) {
	dir := files(t, map[string]string{"bad.yaml": configHead + "mode: magic\n"})
	for args, want := range map[string]string{
		"doctor x":                     `unexpected argument "x": want flags only; kube-proxy doctor --help lists them`,
		"doctor --all-mode":            "unknown flag --all-mode; did you mean --all-modes?",
		"doctor -o xml":                `--output: "xml" is unknown: want text, json, yaml or jsonpath=TEMPLATE`,
		"doctor --server ::::":         `--server: "::::" is no address: want HOST or HOST:PORT, such as 127.0.0.1:10249 or [::1]:10249`,
		"doctor --config DIR/none":     "read configuration: stat DIR/none: no such file or directory",
		"doctor --config DIR/bad.yaml": `DIR/bad.yaml:3: mode: "magic" is no mode on linux: want iptables, ipvs, nftables, userspace or nothing`,
	} {
		got := call(t, dir, strings.Fields(args)...)
		kit.Check(t, got.Code == 2 && got.Out == "" && got.Err == "kube-proxy: "+want+"\n",
			"%s: exit %d, %s%s; want 2 and %s", args, got.Code, got.Out, got.Err, want)
	}
}

// TestManifestsFromAPipe checks that all of a command sees manifests that can be read once only.
func TestManifestsFromAPipe(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	ask := func(command string) outcome {
		r, w, err := os.Pipe()
		kit.Must(t, err)
		old := os.Stdin
		os.Stdin = r
		defer func() { os.Stdin = old; r.Close() }()
		_, _ = w.WriteString("apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}\n")
		w.Close()
		return call(t, "", command, "--hostname-override=node-a", "--metrics-bind-address=127.0.0.1:1", "--manifests=-")
	}
	got := ask("doctor")
	for want, wanted := range map[string]bool{"objects of Services      1 Service, 1 without a ready endpoint": true, "ClusterIPs: 1": true, "there is no Node": false} {
		kit.Check(t, strings.Contains(got.Out, want) == wanted, "%q: want %t\n%s%s", want, wanted, got.Out, got.Err)
	}
	if got := ask("diff"); !strings.Contains(got.Out, "shop/web") {
		t.Errorf("diff lacks shop/web: exit %d\n%s%s", got.Code, got.Out, got.Err)
	}
}

// TestDoctorReport checks that both forms and the exit code agree, whatever this machine
// has. The package test/live has nodes with known faults.
func TestDoctorReport(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	args := []string{"doctor", "--hostname-override=node-a", "--metrics-bind-address=127.0.0.1:1", "--all-modes"}
	text, document := call(t, "", args...), call(t, "", append(args, "-o=json")...)
	var r struct {
		OK       bool
		Modes    []string
		Findings []struct{ ID, Severity, What, Why, Link string }
		Checks   []struct{ Name, State string }
	}
	err := json.Unmarshal([]byte(document.Out), &r)
	kit.Need(t, err == nil, "%v\n%s", err, document.Out)
	code := 0
	if len(r.Findings) > 0 {
		code = 1
	}
	for _, c := range r.Checks {
		kit.Check(t, strings.Contains(text.Out, " "+c.Name), "the text lacks the check %s\n%s", c.Name, text.Out)
		if c.State == "failed" {
			code = 2
		}
	}
	kit.Check(t, text.Code == code && document.Code == code && r.OK == (code == 0) && len(r.Modes) == 4 && strings.HasPrefix(text.Out, "node     node-a, linux, modes nftables, iptables, userspace, ipvs\n"),
		"exit %d and %d, want %d: %+v\n%s", text.Code, document.Code, code, r, text.Out)
	for _, f := range r.Findings {
		kit.Check(t, f.ID != "" && f.Severity != "" && f.What != "" && f.Why != "" && strings.HasPrefix(f.Link, "docs/"), "finding %+v", f)
	}
}
