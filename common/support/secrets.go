// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package support

import (
	"bytes"
	"encoding/base64"
	"regexp"
	"strings"
)

// Secrets are texts that must not be in an archive.
type Secrets struct{ values [][]byte }

// shortest is the least length of a secret. A shorter one would be found everywhere.
const shortest = 6

// Add adds a secret, and its form in base64, as in a kubeconfig.
func (s *Secrets) Add(secret []byte) {
	whole := secret
	if secret = bytes.TrimSpace(secret); len(secret) < shortest {
		return
	}
	for _, text := range [][]byte{whole, secret} {
		s.values = append(s.values, []byte(base64.StdEncoding.EncodeToString(text)))
	}
	s.values = append(s.values, secret)
	if bytes.Contains(secret, []byte("\n")) { // each line of a key, wherever its lines are broken
		for line := range strings.Lines(string(secret)) {
			if line = strings.TrimSpace(line); len(line) >= 40 && !strings.HasPrefix(line, "-----") {
				s.values = append(s.values, []byte(line))
			}
		}
	}
}

// recognized are secrets known by their form: blocks of PEM, tokens of service accounts,
// and values of headers and fields with certain names.
var recognized = []struct {
	look *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]+-----.*?-----END [A-Z0-9 ]+-----`), removed},
	{regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+`), removed},
	{regexp.MustCompile(`(?i)\b(bearer|basic) [A-Za-z0-9._~+/=-]{8,}`), "$1 " + removed},
	{regexp.MustCompile(`(?i)((?:token|password|client-key-data|client-certificate-data|certificate-authority-data)"?[:=] *"?)[A-Za-z0-9._~+/=-]{8,}`), "$1" + removed},
}

// removed stands where a secret was.
const removed = "[removed]"

// Remove returns text without secrets.
func (s *Secrets) Remove(text []byte) []byte {
	if s != nil {
		for _, v := range s.values {
			text = bytes.ReplaceAll(text, v, []byte(removed))
		}
	}
	for _, r := range recognized {
		text = r.look.ReplaceAll(text, []byte(r.with))
	}
	return text
}
