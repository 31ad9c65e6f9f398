// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/statusview"
	"kubeproxy/common/terminal"
)

// Status asks a running proxy for its state.
type Status struct {
	Server Server
	Query  statusview.Query

	format, selector, order, until string
	watch                          bool
}

// Register registers the flags of s.
func (s *Status) Register(fs *pflag.FlagSet) {
	s.Server.Register(fs)
	fs.StringVarP(&s.Query.Namespace, "namespace", "n", "", "look into this `NAMESPACE` alone")
	fs.StringVarP(&s.selector, "selector", "l", "", "only Services with these `LABELS`, such as app=web,tier!=test")
	fs.StringVarP(&s.format, "output", "o", string(statusview.Table), "`FORMAT` of what is printed: table, wide, name, "+document.DataForms)
	fs.StringVar(&s.order, "sort", string(statusview.ByName), "`ORDER` of Services: name, state with the worst first, endpoints with the fewest first, or since with the latest change first")
	fs.BoolVar(&s.Query.Failing, "failing", false, "list only Services that are not programmed in full, have a port that serves no client or a health check that is not answered")
	fs.StringVar(&s.until, "wait", "", "wait, up to --timeout, until a `CONDITION` is true: ok for exit code 0, programmed for all selected Services in force, or answers")
	fs.Lookup("wait").NoOptDefVal = statusview.UntilOK
	fs.BoolVarP(&s.watch, "watch", "w", false, "go on until an interrupt")
}

func (s *Status) check() error {
	s.Query.Sort = statusview.Order(s.order)
	if s.selector != "" {
		selector, err := labels.Parse(s.selector)
		if err != nil {
			return fmt.Errorf("--selector: %q is no selector: %w", s.selector, err)
		}
		s.Query.Selects = func(of map[string]string) bool { return selector.Matches(labels.Set(of)) }
	}
	switch {
	case !slices.Contains(statusview.Orders, s.Query.Sort):
		return fmt.Errorf("--sort: %q is unknown: want name, state, endpoints or since", s.order)
	case s.until != "" && !slices.Contains(statusview.Conditions, s.until):
		return fmt.Errorf("--wait: %q is unknown: want ok, programmed or answers", s.until)
	case s.until != "" && s.watch:
		return errors.New("--wait ends by itself, and --watch does not: want one of them")
	}
	return document.CheckOutput(s.format, string(statusview.Table), string(statusview.Wide), string(statusview.Name))
}

// Run asks, and writes the answer to out. With --watch it goes on until ctx ends, which is no
// error. It returns the exit code, with an error that is to be printed.
func (s *Status) Run(ctx context.Context, out, notices io.Writer) (code int, err error) {
	err = s.check()
	if err == nil {
		s.Query.Server, err = s.Server.Address()
	}
	if err != nil {
		return statusview.ExitUnreachable, err
	}
	view := statusview.View{Format: statusview.Format(s.format), Full: s.Query.Name != "", Colour: terminal.Coloured(out), Width: terminal.Columns(out), Now: time.Now()}
	if s.watch {
		err := (&statusview.Watch{Query: &s.Query, View: view, Timeout: s.Server.Timeout}).Run(ctx, out)
		if err != nil {
			return statusview.ExitCode(nil, err), err
		}
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Server.Timeout)
	defer cancel()
	stopNotice := terminal.NoticeIfSlow(notices, "kube-proxy: still asking "+s.Query.Server+" ...")
	answer, err := s.ask(ctx)
	stopNotice()
	code = statusview.ExitCode(answer, err)
	if err != nil {
		return code, err
	}
	view.Now = time.Now()
	if err := view.Print(out, answer); err != nil {
		return statusview.ExitUnreachable, fmt.Errorf("print the answer: %w", err)
	}
	switch {
	case s.until == "":
		return code, nil
	case answer.Meets(s.until):
		return 0, nil
	}
	return max(code, statusview.ExitNotOK), fmt.Errorf("--wait: the condition %s is not true after %s", s.until, s.Server.Timeout)
}

// waitPause is the time between two questions of --wait.
const waitPause = time.Second

// ask returns an answer, with --wait the first that meets the condition, or the last in time.
func (s *Status) ask(ctx context.Context) (*statusview.Answer, error) {
	last, err := s.Query.Ask(ctx)
	for s.until != "" && !last.Meets(s.until) && reconcile.Pause(ctx, waitPause) {
		now, nowErr := s.Query.Ask(ctx)
		if nowErr == nil || ctx.Err() == nil { // what the end of the time interrupts says nothing
			last, err = now, nowErr
		}
	}
	return last, err
}
