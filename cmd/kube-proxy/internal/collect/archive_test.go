// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/test/kit"
)

// unpack returns the files of an archive.
func unpack(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	kit.Must(t, err)
	files := map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		kit.Must(t, err)
		text, err := io.ReadAll(r)
		kit.Must(t, err)
		files[h.Name] = string(text)
	}
}

func text(s string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// TestFailedParts checks that a part that fails, does not apply or hangs is named, and
// keeps no other from the archive.
func TestFailedParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		defer close(hang)
		d := &Dump{Folder: "dump", Timeout: time.Second, Parts: []Part{
			{Name: "a.txt", What: "a", Collect: text("A")},
			{Name: "bad.txt", What: "bad", Collect: func(_ context.Context, w io.Writer) error {
				_, _ = io.WriteString(w, "half")
				return errors.New("token: abcdefgh12345678 refused")
			}},
			{Name: "none.txt", What: "none", Collect: func(context.Context, io.Writer) error { return NotHere("no such thing") }},
			{Name: "hangs.txt", What: "hangs", Collect: func(context.Context, io.Writer) error {
				<-hang
				return nil
			}},
			{Name: "z.txt", What: "z", Collect: text("Z")},
		}}
		var out bytes.Buffer
		r, err := d.Write(t.Context(), &out)
		kit.Must(t, err)
		files := unpack(t, out.Bytes())
		list := files["dump/"+Contents]
		delete(files, "dump/"+Contents)
		kit.Same(t, "(-want +got)", map[string]string{"dump/a.txt": "A", "dump/bad.txt": "half", "dump/z.txt": "Z"}, files)
		kit.Same(t, "failed (-want +got)", []string{"bad.txt", "hangs.txt"}, r.Failed)
		for _, want := range []string{"FAILED: token: [removed] refused", "none: none here: no such thing", "hangs.txt", "not ended in 1s"} {
			kit.Check(t, strings.Contains(list, want), "no %q in\n%s", want, list)
		}
	})
}

// TestSize checks that an archive of what cannot be compressed stays within the bound, and
// that of the log the end is kept.
func TestSize(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	noise := func(end string) func(context.Context, io.Writer) error {
		return func(_ context.Context, w io.Writer) error {
			_, err := io.CopyN(w, random, 1<<20)
			return errors.Join(err, text(end)(t.Context(), w))
		}
	}
	const limit = 2 << 20
	d := &Dump{Folder: "d", Timeout: time.Minute, Limit: limit, Parts: []Part{{Name: "0", Collect: noise("")}, {Name: "1", Collect: noise("")}, {Name: "2", Collect: noise("")}, {Name: "3", Collect: noise("")}, {Name: "log", Collect: noise("the end"), Tail: true}}}
	var out bytes.Buffer
	if _, err := d.Write(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, out.Bytes())
	kit.Check(t, out.Len() <= limit && strings.HasSuffix(files["d/log"], "the end") && strings.Contains(files["d/"+Contents], "shortened"),
		"%d bytes; contents:\n%s", out.Len(), files["d/"+Contents])
}

func TestSecrets(t *testing.T) {
	const token, password = "s3cr3t-t0ken-of-mine", "swordfish"
	key := "-----BEGIN EC PRIVATE KEY-----\n" + strings.Repeat("MHcCAQEEIBlongline0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ/+abcdefgh\n", 3) + "-----END EC PRIVATE KEY-----\n"
	s := &Secrets{}
	s.Add([]byte(token))
	s.Add([]byte(password + "\n"))
	s.Add([]byte(key))
	s.Add(nil)
	jwt := "eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJrdWJlcm5ldGVz.c2lnbmF0dXJl"
	in := strings.Join([]string{
		"plain text stays", "Authorization: Bearer " + jwt, "token: " + token, "pw=" + password, key,
		"header Authorization: Bearer opaque-0123456789", "x " + base64.StdEncoding.EncodeToString([]byte(token)) + " y",
		"client-key-data: " + base64.StdEncoding.EncodeToString([]byte(key)), strings.Split(key, "\n")[1], `"client-key-data": "b3RoZXIta2V5"`, "client-key-data: YW5vdGhlci1rZXk=", "in the middle of " + jwt + " a line",
	}, "\n")
	got := string(s.Remove([]byte(in)))
	for _, secret := range []string{token, password, jwt, "MHcCAQEE", "opaque-0123456789", "b3RoZXIta2V5", "YW5vdGhlci1rZXk", base64.StdEncoding.EncodeToString([]byte(token)), base64.StdEncoding.EncodeToString([]byte(key))[:40]} {
		kit.Check(t, !strings.Contains(got, secret), "%q is left in\n%s", secret, got)
	}
	for _, stays := range []string{"plain text stays", "in the middle of ", " a line"} {
		kit.Check(t, strings.Contains(got, stays), "%q is lost in\n%s", stays, got)
	}
}

// TestBounded checks which end of a long part is kept.
func TestBounded(t *testing.T) {
	for tail, want := range map[bool]string{true: "last", false: "first"} {
		b := &bounded{tail: tail}
		for _, part := range []string{"first", strings.Repeat("x", maxPart-5), "last"} {
			if n, err := b.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		text := string(b.bytes())
		kit.Check(t, b.lost && len(text) <= maxPart && strings.HasPrefix(text, "first") != tail && strings.HasSuffix(text, "last") == tail,
			"tail %t: no %q, %d bytes, lost %t", tail, want, len(text), b.lost)
	}
}
