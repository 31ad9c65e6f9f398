// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"
)

// newKey writes a new key without a password, which takes a second and a gigabyte, and returns the files of both parts.
func newKey(t *testing.T) (private, public string) {
	t.Helper()
	pub, key, err := minisign.GenerateKey(nil)
	must(t, err)
	text, err := key.MarshalText()
	must(t, err)
	dir := t.TempDir()
	private, public = filepath.Join(dir, "minisign.key"), filepath.Join(dir, "minisign.pub")
	must(t, os.WriteFile(private, text, 0o600))
	must(t, os.WriteFile(public, []byte(pub.String()+"\n"), 0o644))
	return private, public
}

// TestSign signs files, and has others change them, the list of checksums, or the signature.
func TestSign(t *testing.T) {
	private, public := newKey(t)
	_, another := newKey(t)
	ctx := t.Context()
	o := &options{out: t.TempDir(), key: private, version: "v1.2.3", revision: revision, source: "https://example.com/kubeproxy", systems: "linux-amd64", name: "localhost/kubeproxy"}
	write := func(name, text string) { must(t, os.WriteFile(filepath.Join(o.out, name), []byte(text), 0o644)) }
	write("kube-proxy", "a program")
	write("kube-proxy.tgz", "a chart")
	for _, step := range releaseSteps[len(releaseSteps)-3:] {
		must(t, step(ctx, o))
	}
	testOrigin(t, o)
	check := func(key, want string) {
		t.Helper()
		err := run(ctx, []string{"verify", "-out", o.out, "-key", key})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("verified: %v, want %q", err, want)
		}
	}
	check(public, "")
	check(another, "the signature is not of this key")
	check(private, "want a public one of minisign")
	write("kube-proxy", "another program")
	check(public, "kube-proxy: is not the file that was signed")
	must(t, os.Remove(filepath.Join(o.out, "kube-proxy")))
	check(public, "") // who needs the chart has not fetched it
	must(t, sum(ctx, o))
	check(public, "the signature is not of this key and these checksums")
	must(t, os.WriteFile(private, []byte("no key"), 0o600))
	if err := sign(ctx, o); err == nil || !strings.Contains(err.Error(), "want one of minisign") {
		t.Errorf("signed with no key: %v", err)
	}
}

// testOrigin reads the statement as other programs do.
func testOrigin(t *testing.T, o *options) {
	t.Helper()
	var st struct {
		Type          string `json:"_type"`
		PredicateType string
		Subject       []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	must(t, json.Unmarshal(read(t, filepath.Join(o.out, origin)), &st))
	if st.Type != "https://in-toto.io/Statement/v1" || st.PredicateType != "https://slsa.dev/provenance/v1" || len(st.Subject) != 2 || st.Subject[0].Name != "kube-proxy" ||
		len(st.Subject[0].Digest["sha256"]) != 64 || st.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] != o.revision {
		t.Errorf("the origin is %+v", st)
	}
	if !strings.Contains(string(read(t, filepath.Join(o.out, checksums))), "  "+origin+"\n") {
		t.Errorf("%s has no checksum", origin)
	}
}
