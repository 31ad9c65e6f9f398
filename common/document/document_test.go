// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"bufio"
	"bytes"
	"errors"
	"strings"
	"testing"
)

// value has what the two sorts of JSON print differently: a sign of HTML, and a character
// that changes the direction of text.
var value = map[string]string{"a": "<\u202e"}

func TestFormats(t *testing.T) {
	for f, want := range map[Format]string{Text: "text\n", JSON: "{\n  \"a\": \"\\u003c\u202e\"\n}\n"} {
		var b bytes.Buffer
		if err := f.Write(&b, value, func(w *bufio.Writer) { w.WriteString("text\n") }); err != nil || b.String() != want {
			t.Errorf("%s: %q, %v; want %q", f, b.String(), err, want)
		}
	}
	err := Format("yaml").Write(&bytes.Buffer{}, value, func(*bufio.Writer) { t.Error("text was asked for") })
	if err == nil || !strings.Contains(err.Error(), `"yaml" is unknown: want text or json`) {
		t.Errorf("yaml: %v", err)
	}
}

func TestReadable(t *testing.T) {
	var b bytes.Buffer
	if err := WriteReadable(&b, value); err != nil || b.String() != "{\n  \"a\": \"<\\u202e\"\n}\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// full is a disk without room.
type full struct{ error }

func (f full) Write([]byte) (int, error) { return 0, f.error }

func TestWriteFails(t *testing.T) {
	w := full{errors.New("no space left on device")}
	for _, f := range []Format{Text, JSON} {
		if err := f.Write(w, value, func(b *bufio.Writer) { b.WriteString("text\n") }); !errors.Is(err, w.error) {
			t.Errorf("%s: %v, want %v", f, err, w.error)
		}
	}
}
