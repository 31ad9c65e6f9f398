// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/terminal"
	"kubeproxy/common/document"
	"kubeproxy/common/trafficview"
)

// Top asks a running proxy what Services carry.
type Top struct {
	Server Server
	Query  trafficview.Query

	format, order string
	watch         bool
	limit         int
}

// Register registers the flags of t.
func (t *Top) Register(fs *pflag.FlagSet) {
	t.Server.Register(fs)
	fs.StringVarP(&t.Query.Namespace, "namespace", "n", "", "only Services of this `NAMESPACE`")
	fs.StringVarP(&t.format, "output", "o", "table", "`FORMAT` of what is printed: table or json")
	fs.StringVar(&t.order, "sort", string(trafficview.ByRate), "`ORDER` of Services and endpoints: rate, connections, bytes or name")
	fs.IntVar(&t.limit, "limit", 20, "print this `NUMBER` of Services, and of endpoints, 0 for all; JSON has all")
	fs.DurationVar(&t.Query.Interval, "interval", 2*time.Second, "`TIME` between two readings, 0 for totals without rates")
	fs.BoolVarP(&t.watch, "watch", "w", false, "go on until an interrupt")
}

func (t *Top) check() error {
	t.Query.Sort, t.Query.Endpoints = trafficview.Order(t.order), t.Query.Name != ""
	switch {
	case t.format != "table" && t.format != "json":
		return fmt.Errorf("--output: %q is unknown: want table or json", t.format)
	case !slices.Contains(trafficview.Orders, t.Query.Sort):
		return fmt.Errorf("--sort: %q is unknown: want rate, connections, bytes or name", t.order)
	case t.Query.Interval < 0 || t.watch && t.Query.Interval == 0:
		return fmt.Errorf("--interval: %s is too short: want a time such as 2s", t.Query.Interval)
	case t.limit < 0:
		return fmt.Errorf("--limit: %d is too small: want 0 or more", t.limit)
	}
	return nil
}

// Run asks, and writes answers to out. With --watch it goes on until ctx ends, which is
// no error.
func (t *Top) Run(ctx context.Context, out, notices io.Writer) error {
	err := t.check()
	if err == nil {
		t.Query.Server, err = t.Server.Address()
	}
	if err != nil {
		return err
	}
	t.Query.Timeout = t.Server.Timeout
	endNotice := sync.OnceFunc(terminal.NoticeIfSlow(notices, "kube-proxy: taking two readings of what Services carry ..."))
	pages := &terminal.Pages{To: out}
	err = t.Query.Follow(ctx, func(a *trafficview.Answer) (bool, error) {
		endNotice()
		return t.watch, t.show(a, pages)
	})
	endNotice()
	if t.watch && errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

func (t *Top) show(a *trafficview.Answer, pages *terminal.Pages) error {
	if t.format == "json" {
		return document.WriteReadable(pages.To, a)
	}
	var page bytes.Buffer
	if err := (trafficview.View{Limit: t.limit, Colour: terminal.Coloured(pages.To)}).Print(&page, a); err != nil {
		return err
	}
	if t.watch {
		return pages.Show(page.Bytes())
	}
	_, err := pages.To.Write(page.Bytes())
	return err
}
