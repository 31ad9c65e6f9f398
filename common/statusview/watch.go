// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"bytes"
	"context"
	"io"
	"strings"
	"time"

	"kubeproxy/common/document"
)

// Watch follows what a proxy answers.
type Watch struct {
	Query *Query
	View  View
	// Timeout is how long an answer may take.
	Timeout time.Duration
}

// The pause between two requests is minPause at least, and so long that answers take one
// part in askShare of the time. The answer of a proxy with 10,000 Services has megabytes.
const (
	minPause = time.Second
	askShare = 20
)

// Run writes the state, and then each change with its time, until ctx ends. That is no
// error. A request that fails after the first one is written as a change, because a proxy
// that restarts does not answer for a while. As JSON, each state that differs is written
// in full, and a request that fails as a failure.
func (wa *Watch) Run(ctx context.Context, w io.Writer) error {
	last, err := wa.ask(ctx)
	if err != nil {
		return err
	}
	if err := wa.View.Print(w, last); err != nil {
		return err
	}
	fault := ""
	for pause := minPause; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		asked := time.Now()
		now, err := wa.ask(ctx)
		pause = max(minPause, askShare*time.Since(asked))
		if ctx.Err() != nil {
			return nil
		}
		var all []change
		switch {
		case err != nil && err.Error() == fault:
			continue
		case err != nil:
			fault = err.Error()
			if err := wa.writeFailure(w, fault); err != nil {
				return err
			}
			continue
		case fault != "":
			fault = ""
			all = append([]change{{"proxy", "answers again"}}, wa.changes(last, now)...)
		default:
			all = wa.changes(last, now)
		}
		last = now
		if err := wa.write(w, last, all); err != nil {
			return err
		}
	}
}

// changes lists what is different in b from a.
func (wa *Watch) changes(a, b *Answer) []change {
	if wa.Query.Failing {
		return changes(a, b, "nothing is wrong any more")
	}
	return changes(a, b, "gone")
}

func (wa *Watch) ask(ctx context.Context) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, wa.Timeout)
	defer cancel()
	return wa.Query.Ask(ctx)
}

// failure is written as JSON in place of an answer.
type failure struct {
	Server string `json:"server"` // that was asked
	OK     bool   `json:"ok"`     // always false
	Error  string `json:"error"`
}

// writeFailure writes that the proxy does not answer.
func (wa *Watch) writeFailure(w io.Writer, what string) error {
	if wa.View.Format == JSON {
		return document.WriteReadable(w, failure{Server: wa.Query.Server, Error: what})
	}
	return wa.write(w, nil, []change{{"proxy", what}})
}

// write writes changes, one line for each.
func (wa *Watch) write(w io.Writer, now *Answer, all []change) error {
	if len(all) == 0 {
		return nil
	}
	if wa.View.Format == JSON {
		return document.WriteReadable(w, now)
	}
	var b bytes.Buffer
	at := time.Now().Format(time.TimeOnly)
	for _, c := range all {
		lines := []string{c.about + ": " + c.what}
		if wa.View.Format != Wide {
			lines = document.Wrap(lines[0], document.Width-len(at)-2)
		}
		b.WriteString(at + "  " + strings.Join(lines, "\n"+strings.Repeat(" ", len(at)+2)) + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}
