// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
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
		if got.Code != 2 || got.Out != "" || got.Err != "kube-proxy: "+want+"\n" {
			t.Errorf("%s: exit %d, %s%s; want 2 and %s", args, got.Code, got.Out, got.Err, want)
		}
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
	if err := json.Unmarshal([]byte(document.Out), &r); err != nil {
		t.Fatalf("%v\n%s", err, document.Out)
	}
	code := 0
	if len(r.Findings) > 0 {
		code = 1
	}
	for _, c := range r.Checks {
		if !strings.Contains(text.Out, " "+c.Name) {
			t.Errorf("the text lacks the check %s\n%s", c.Name, text.Out)
		}
		if c.State == "failed" {
			code = 2
		}
	}
	if text.Code != code || document.Code != code || r.OK != (code == 0) || len(r.Modes) != 4 || !strings.HasPrefix(text.Out, "node     node-a, linux, modes nftables, iptables, userspace, ipvs\n") {
		t.Errorf("exit %d and %d, want %d: %+v\n%s", text.Code, document.Code, code, r, text.Out)
	}
	for _, f := range r.Findings {
		if f.ID == "" || f.Severity == "" || f.What == "" || f.Why == "" || !strings.HasPrefix(f.Link, "docs/") {
			t.Errorf("finding %+v", f)
		}
	}
}
