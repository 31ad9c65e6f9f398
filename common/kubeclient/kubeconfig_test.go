// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/test/kit"
)

const goodKubeconfig = `apiVersion: v1
kind: Config
clusters:
- {name: shop, cluster: {server: "https://192.0.2.1:6443"}}
users:
- {name: proxy, user: {token: secret}}
contexts:
- {name: here, context: {cluster: shop, user: proxy}}
current-context: here
`

// TestKubeconfigs checks that the error for each faulty kubeconfig names the file, the
// field and the expected value.
func TestKubeconfigs(t *testing.T) {
	for name, tc := range map[string]struct {
		old, now string // of the good one; all of it if old is empty
		master   string
		want     []string // nil if it is good
	}{
		"good":                        {},
		"no cluster, but --master":    {old: "clusters:\n- {name: shop, cluster: {server: \"https://192.0.2.1:6443\"}}\n", master: "https://192.0.2.2"},
		"empty":                       {now: "\n", want: []string{"names no cluster", "want clusters, users"}},
		"not YAML":                    {now: "kind: [", want: []string{"want YAML of kind Config"}},
		"of another kind":             {old: "kind: Config", now: "kind: Pod", want: []string{"Pod", "want YAML of kind Config"}},
		"no current-context":          {old: "current-context: here", want: []string{"current-context is missing", "one of here"}},
		"another current-context":     {old: "current-context: here", now: "current-context: there", want: []string{"current-context", `no context "there"`, "one of here"}},
		"no such cluster":             {old: "cluster: shop,", now: "cluster: club,", want: []string{"contexts[here].context.cluster", `no cluster "club"`, "one of shop"}},
		"no such user":                {old: "user: proxy", now: "user: nobody", want: []string{"contexts[here].context.user", `no user "nobody"`, "one of proxy"}},
		"no user":                     {old: ", user: proxy", want: []string{"contexts[here].context.user is missing", "one of proxy"}},
		"no server":                   {old: `server: "https://192.0.2.1:6443"`, want: []string{"clusters[shop].cluster.server is missing", "https://"}},
		"server of no known protocol": {old: "https://192", now: "ftp://192", want: []string{"clusters[shop].cluster.server", "ftp://192.0.2.1:6443", "want one like"}},
		"no such authority":           {old: "{server:", now: "{certificate-authority: no/ca.crt, server:", want: []string{"clusters[shop].cluster.certificate-authority", "no/ca.crt", "no such file"}},
		"authority that is none":      {old: "{server:", now: "{certificate-authority-data: aGVsbG8=, server:", want: []string{"clusters[shop].cluster.certificate-authority", "want PEM"}},
		"no such token file":          {old: "token: secret", now: "tokenFile: no/token", want: []string{"users[proxy].user.tokenFile", "no/token"}},
		"certificate that is none":    {old: "token: secret", now: "client-certificate-data: aGVsbG8=, client-key-data: aGVsbG8=", want: []string{"users[proxy].user.client-certificate-data", "want PEM"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := tc.now
			if tc.old != "" || tc.now == "" {
				text = strings.Replace(goodKubeconfig, tc.old, tc.now, 1)
			}
			file := filepath.Join(t.TempDir(), "kubeconfig")
			kit.WriteFile(t, file, text)
			checkRefusal(t, file, tc.master, tc.want)
		})
	}
	t.Run("missing", func(t *testing.T) {
		checkRefusal(t, filepath.Join(t.TempDir(), "none"), "", []string{"no such file", "--kubeconfig"})
	})
	t.Run("directory", func(t *testing.T) {
		checkRefusal(t, t.TempDir(), "", []string{"is a directory", "want a file"})
	})
}

func checkRefusal(t *testing.T, file, master string, want []string) {
	t.Helper()
	to, err := readKubeconfig(file, master)
	if len(want) == 0 {
		if err != nil || to.Host == "" || master != "" && to.Host != master {
			t.Errorf("server %v, %v", to, err)
		}
		return
	}
	if err == nil {
		t.Fatalf("no error, want one with %q", want)
	}
	text := kit.Normalize(err.Error(), filepath.Dir(file))
	for _, words := range append(want, "DIR/"+filepath.Base(file)) {
		if !strings.Contains(text, words) {
			t.Errorf("error %q, want %q in it", text, words)
		}
	}
}

// TestRootedPaths reads files whose paths begin with a slash: on Windows, where these have no drive, those of the
// kubeconfig's drive, or those below the folder of a HostProcess pod that has them nowhere else.
func TestRootedPaths(t *testing.T) {
	dir, pod := t.TempDir(), t.TempDir()
	rooted := filepath.ToSlash(strings.TrimPrefix(dir, filepath.VolumeName(dir)))
	t.Setenv("CONTAINER_SANDBOX_MOUNT_POINT", pod)
	for path, text := range map[string]string{
		filepath.Join(dir, "token"):               "a",
		filepath.Join(pod, rooted, "token"):       "b",
		filepath.Join(pod, "run-of-pod", "token"): "c",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{rooted + "/token": "a"}
	if !filepath.IsAbs("/run-of-pod") {
		want["/run-of-pod/token"] = "c"
	}
	for path, text := range want {
		file := filepath.Join(t.TempDir(), "kubeconfig")
		kit.WriteFile(t, file, strings.Replace(goodKubeconfig, "token: secret", "tokenFile: "+path, 1))
		to, err := readKubeconfig(file, "")
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if got, err := os.ReadFile(to.BearerTokenFile); err != nil || string(got) != text {
			t.Errorf("%s: %q of %s, %v, want %q", path, got, to.BearerTokenFile, err, text)
		}
	}
}
