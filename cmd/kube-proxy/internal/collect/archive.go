// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"kubeproxy/common/printable"
)

// MaxSize bounds an archive, in bytes, so that it can be sent by mail or attached to an issue.
const MaxSize = 50 << 20

// maxPart bounds a part, in bytes before compression: it is kept in memory.
const maxPart = 16 << 20

// Contents is the name of the file that lists the others. It is the last one.
const Contents = "CONTENTS.txt"

// Part is one file of the archive.
type Part struct {
	Name string
	What string // in a few words
	// Tail keeps the end of a part that is too long, instead of its beginning.
	Tail bool
	// Collect writes the part, also before an error, which may be a NotHere.
	Collect func(context.Context, io.Writer) error
	// Details, if set, is called after Collect: what the list of contents says beside What.
	Details func() string
}

// NotHere is why a part does not apply to this node, which is no failure.
type NotHere string

func (n NotHere) Error() string { return string(n) }

// Dump describes an archive.
type Dump struct {
	Folder  string // in which the files of the archive are
	Parts   []Part
	Timeout time.Duration // for each part
	Limit   int64         // bytes of the archive, 0 for MaxSize
	Secrets *Secrets
	// Progress, if set, is called before each part.
	Progress func(part, of int, name string)
}

// Result lists the parts by their outcome.
type Result struct {
	Lines  []string
	Failed []string // names of parts
}

// Write writes the archive or fails. A part that fails is in the Result alone.
func (d *Dump) Write(ctx context.Context, to io.Writer) (*Result, error) {
	size := &counter{to: to}
	zip := gzip.NewWriter(size)
	archive := tar.NewWriter(zip)
	r := &Result{}
	for i, p := range d.Parts {
		if d.Progress != nil {
			d.Progress(i+1, len(d.Parts), p.Name)
		}
		text, line, failed := d.collect(ctx, p)
		if err := zip.Flush(); err != nil {
			return nil, err
		}
		if cut := fit(text, cmp.Or(d.Limit, MaxSize)-reserve-size.n, p.Tail); len(cut) < len(text) {
			text, line = cut, line+", shortened to the size of the archive"
		}
		r.Lines = append(r.Lines, line)
		if failed {
			r.Failed = append(r.Failed, p.Name)
		}
		if err := d.add(archive, p.Name, text); err != nil {
			return nil, err
		}
	}
	if err := d.add(archive, Contents, []byte(r.text())); err != nil {
		return nil, err
	}
	return r, errors.Join(archive.Close(), zip.Close())
}

// reserve is kept for the list of contents and the ends of the formats.
const reserve = 64 << 10

func (r *Result) text() string {
	return "What is in this archive. Tokens, keys and certificates were removed where they were known or recognized.\n\n" +
		strings.Join(r.Lines, "\n") + "\n"
}

// add adds a file unless it is empty.
func (d *Dump) add(to *tar.Writer, name string, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	h := &tar.Header{Name: d.Folder + "/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: time.Now().Truncate(time.Second), Format: tar.FormatPAX}
	if err := to.WriteHeader(h); err != nil {
		return err
	}
	_, err := to.Write(text)
	return err
}

// collect returns the text of a part without secrets, and its line in the list.
func (d *Dump) collect(ctx context.Context, p Part) (text []byte, line string, failed bool) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	start := time.Now()
	buffer := &bounded{tail: p.Tail}
	err := d.run(ctx, p, buffer)
	text = clean(d.Secrets.Remove(buffer.bytes()))
	line = fmt.Sprintf("%-20s %s: %s in %s", p.Name, p.What, sizeText(len(text)), time.Since(start).Round(time.Millisecond))
	if buffer.lost {
		line += ", shortened"
	}
	if buffer.details != "" {
		line += ": " + printable.Text(buffer.details)
	}
	var absent NotHere
	switch {
	case errors.As(err, &absent):
		line = fmt.Sprintf("%-20s %s: none here: %s", p.Name, p.What, absent)
	case err != nil:
		reason := string(d.Secrets.Remove([]byte(printable.Error(err))))
		return text, line + "; FAILED: " + reason, true
	}
	return text, line, false
}

// run collects a part. It does not wait for a part that does not end in time.
func (d *Dump) run(ctx context.Context, p Part, to *bounded) error {
	ended := make(chan error, 1)
	mine := &bounded{tail: to.tail}
	go func() { ended <- p.Collect(ctx, mine) }()
	grace := time.NewTimer(d.Timeout + time.Second)
	defer grace.Stop()
	select {
	case err := <-ended:
		*to = *mine
		if p.Details != nil {
			to.details = p.Details()
		}
		return err
	case <-grace.C:
		return fmt.Errorf("not ended in %s", d.Timeout)
	}
}

// clean returns text that is safe to show on a terminal: programs that answer in place of the
// proxy, authors of objects and logs may have put codes into it.
func clean(text []byte) []byte {
	return []byte(printable.Lines(strings.ReplaceAll(string(text), "\r\n", "\n")))
}

func sizeText(n int) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%d kB", n>>10)
}

// fit shortens text so that it takes at most room bytes when it is compressed.
func fit(text []byte, room int64, tail bool) []byte {
	for len(text) > 0 {
		size := &counter{to: io.Discard}
		zip, _ := gzip.NewWriterLevel(size, gzip.BestSpeed) // a known level
		_, _ = zip.Write(text)                              // into nothing
		_ = zip.Close()
		if size.n <= room {
			break
		}
		if half := len(text) / 2; tail {
			text = text[len(text)-half:]
		} else {
			text = text[:half]
		}
	}
	return text
}

// counter counts what is written.
type counter struct {
	to io.Writer
	n  int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	return n, err
}

// bounded keeps the beginning or the end of what is written.
type bounded struct {
	buffer  bytes.Buffer
	tail    bool
	lost    bool
	details string // of the part
}

func (b *bounded) Write(p []byte) (int, error) {
	room := maxPart - b.buffer.Len()
	switch {
	case len(p) <= room:
		b.buffer.Write(p)
	case b.tail:
		b.lost = true
		b.buffer.Write(p)
		b.buffer.Next(max(b.buffer.Len()-maxPart/2, 0))
	default:
		b.lost = true
		b.buffer.Write(p[:room])
	}
	return len(p), nil
}

func (b *bounded) bytes() []byte { return b.buffer.Bytes() }

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
