// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kubeproxy/common/document"
	"kubeproxy/common/printable"
	"kubeproxy/common/statusview"
	"kubeproxy/common/terminal"
)

// result is what -o json has of a node. New versions may add fields, but must not rename or remove any.
type result struct {
	Node     string `json:"node"`
	Pod      string `json:"pod,omitempty"`
	ExitCode int    `json:"exitCode"` // of the command there
	// Answer is what the command prints there, as JSON. Without one, Error says why.
	Answer json.RawMessage `json:"answer,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// results is what -o json prints of many nodes.
type results struct {
	OK       bool     `json:"ok"`
	ExitCode int      `json:"exitCode"` // the highest of a node
	Nodes    []result `json:"nodes"`
}

const (
	// atOnce is how many nodes are asked at the same time. Each takes a process of kubectl.
	atOnce = 16
	// nodeTime is how long a node may take beside what the command line gives it.
	nodeTime = time.Minute
	// mostAnswer bounds what a node answers.
	mostAnswer = 64 << 20
	// mostQuiet is how many nodes are asked without progress.
	mostQuiet = 20
)

// fleet runs a command on many nodes.
type fleet struct {
	*plugin
	targets  []target
	problems io.Writer
	progress io.Writer // nil for none
	results  results
}

// all runs the command on every node, and prints what they answer together.
func (p *plugin) all(ctx context.Context, out, problems io.Writer) (int, error) {
	f := &fleet{plugin: p, problems: problems}
	if terminal.Attached(os.Stderr) {
		f.progress = problems
	}
	return f.status(ctx, out)
}

// readNodes asks all nodes, with arguments for each. check returns why an answer cannot be used.
func (f *fleet) readNodes(ctx context.Context, args []string, check func(*result) error) error {
	var err error
	if f.targets, err = f.plugin.targets(f.problems); err != nil {
		return err
	}
	f.results = results{OK: true, Nodes: make([]result, len(f.targets))}
	f.each(func(i int) {
		r := f.readNode(ctx, &f.targets[i], args)
		if r.Error == "" {
			if err := check(r); err != nil {
				r.Answer, r.Error, r.ExitCode = nil, err.Error(), exitFailed
			}
		}
		f.results.Nodes[i] = *r
	})
	for _, r := range f.results.Nodes {
		f.results.ExitCode = max(f.results.ExitCode, r.ExitCode)
	}
	f.results.OK = f.results.ExitCode == 0
	return ctx.Err()
}

// each calls do for each node, for some at the same time.
func (f *fleet) each(do func(i int)) {
	var group sync.WaitGroup
	var done atomic.Int64
	defer f.report(&done)()
	slots := make(chan struct{}, atOnce)
	for i := range f.targets {
		slots <- struct{}{}
		group.Go(func() {
			do(i)
			done.Add(1)
			<-slots
		})
	}
	group.Wait()
}

// report prints how many nodes are done, as long as that takes.
func (f *fleet) report(done *atomic.Int64) (end func()) {
	if f.progress == nil || len(f.targets) <= mostQuiet {
		return func() {}
	}
	tick, stop, stopped := time.NewTicker(terminal.NoticeDelay), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				fmt.Fprintf(f.progress, "kubectl svcproxy: %d of %d nodes have answered\n", done.Load(), len(f.targets))
			}
		}
	}()
	return func() {
		tick.Stop()
		close(stop)
		<-stopped
	}
}

// readNode runs the command on a node.
func (f *fleet) readNode(ctx context.Context, t *target, args []string) *result {
	r := &result{Node: t.node}
	if t.pod == nil {
		r.ExitCode, r.Error = exitFailed, t.why
		return r
	}
	r.Pod = t.pod.String()
	cmd, err := f.exec(t.pod, args, nil, nil)
	if err != nil {
		r.ExitCode, r.Error = exitFailed, err.Error()
		return r
	}
	answer, problems := &bounded{most: mostAnswer}, &bounded{most: 1 << 16}
	err = runFor(ctx, cmd, timeOf(args), answer, problems)
	r.Answer, r.ExitCode, r.Error = read(answer.text, problems.text, err)
	return r
}

// timeOf is how long a node may take: nodeTime, and all times that its arguments have.
func timeOf(args []string) time.Duration {
	all := nodeTime
	for _, a := range args {
		if d, err := time.ParseDuration(a[strings.IndexByte(a, '=')+1:]); err == nil && d > 0 {
			all += d
		}
	}
	return all
}

// errLate means that a node took too long.
var errLate = errors.New("no answer in time")

// runFor runs a command for some time at most.
func runFor(ctx context.Context, cmd *exec.Cmd, limit time.Duration, out, problems io.Writer) error {
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, problems, time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	late := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	err := cmd.Wait()
	if !late.Stop() {
		return fmt.Errorf("%w, within %s", errLate, limit)
	}
	return err
}

// bounded keeps what is written, no more than most.
type bounded struct {
	text []byte
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.text)+len(p) > b.most {
		return 0, fmt.Errorf("it answers more than %d bytes", b.most)
	}
	b.text = append(b.text, p...)
	return len(p), nil
}

// read tells the answer of a node from one that says why there is none, and from what is none.
func read(out, problems []byte, err error) (answer json.RawMessage, code int, why string) {
	var failure struct {
		Error    string `json:"error"`
		ExitCode int    `json:"exitCode"`
	}
	ended, whole := errors.AsType[*exec.ExitError](err)
	exited := err == nil || whole && ended.Exited()
	switch {
	case exited && json.Valid(out):
		_ = json.Unmarshal(out, &failure) // another type of document has no such fields
		if failure.ExitCode != 0 && failure.Error != "" {
			return nil, failure.ExitCode, oneLine(failure.Error)
		}
		if whole {
			code = ended.ExitCode()
		}
		return out, code, ""
	case !exited:
		return nil, exitFailed, err.Error()
	case err != nil:
		return nil, exitFailed, lastLine(problems, err.Error())
	}
	return nil, exitFailed, fmt.Sprintf("it answers no JSON: %.60q", out)
}

// oneLine converts foreign text to one line.
func oneLine(text string) string { return printable.Text(strings.Join(strings.Fields(text), " ")) }

// lastLine returns why kubectl failed. Retries have lines of their own ahead.
func lastLine(problems []byte, otherwise string) string {
	lines := slices.DeleteFunc(strings.Split(string(problems), "\n"), func(l string) bool {
		return strings.TrimSpace(l) == "" || strings.HasPrefix(l, "command terminated with exit code")
	})
	if len(lines) == 0 {
		return otherwise
	}
	return oneLine(lines[len(lines)-1])
}

// option takes a flag with a value out of args.
func option(args []string, long, short string) (value string, rest []string) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case strings.HasPrefix(a, long+"="):
			value = a[len(long)+1:]
		case (a == long || a == short) && i+1 < len(args):
			i++
			value = args[i]
		case short != "" && strings.HasPrefix(a, short) && !strings.HasPrefix(a, "--"):
			value = strings.TrimPrefix(a[len(short):], "=")
		default:
			rest = append(rest, a)
		}
	}
	return value, rest
}

// given takes a switch out of args.
func given(args []string, names ...string) (is bool, rest []string) {
	rest = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return slices.Contains(names, a) })
	return len(rest) < len(args), rest
}

// valued are the flags of status and top whose value is an argument of its own.
var valued = []string{"-n", "-l", "--namespace", "--selector", "--sort", "--server", "--metrics-bind-address", "--config", "--timeout", "--interval", "--limit"}

// namesService reports whether the arguments name a Service.
func namesService(args []string) bool {
	for i, a := range args {
		if !strings.HasPrefix(a, "-") && (i == 0 || !slices.Contains(valued, args[i-1])) {
			return true
		}
	}
	return false
}

// pause is the time between two questions of --wait.
const pause = 2 * time.Second

// status prints a line for each node.
func (f *fleet) status(ctx context.Context, out io.Writer) (int, error) {
	format, args := option(f.command[1:], "--output", "-o")
	view := statusview.View{Format: statusview.Format(format), Full: namesService(args), Colour: terminal.Coloured(out), Width: terminal.Columns(out)}
	if format == "" {
		view.Format = statusview.Table
	}
	view.Failing, args = given(args, "--failing")
	watch, args := given(args, "--watch", "-w")
	forOK, args := given(args, "--wait")
	until, args := option(args, "--wait", "")
	if forOK {
		until = statusview.UntilOK
	}
	limit := 10 * time.Second
	if text, _ := option(args, "--timeout", ""); text != "" {
		limit, _ = time.ParseDuration(text) // the nodes say what is wrong with it
	}
	switch err := document.CheckOutput(string(view.Format), string(statusview.Table), string(statusview.Wide), string(statusview.Name)); {
	case err != nil:
		return 0, err
	case watch:
		return 0, errors.New("--watch follows one proxy: want --node NODE with it")
	case until != "" && !slices.Contains(statusview.Conditions, until):
		return 0, fmt.Errorf("--wait: %q is unknown: want ok, programmed or answers", until)
	}
	args = append([]string{"status", "--output=json"}, args...)
	if !view.Full { // what is in order is counted only
		args = append(args, "--failing")
	}
	for end := time.Now().Add(limit); ; {
		answers, err := f.readStatus(ctx, args)
		met := until != "" && !slices.ContainsFunc(answers, func(a statusview.NodeAnswer) bool { return !a.Answer.Meets(until) })
		switch {
		case err != nil:
			return 0, err
		case until != "" && !met && time.Now().Add(pause).Before(end):
			time.Sleep(pause)
			continue
		case met:
			f.results.OK, f.results.ExitCode = true, 0
		case until != "":
			f.warn(f.problems, fmt.Errorf("--wait: the condition %s is not true on all nodes after %s", until, limit))
			f.results.ExitCode = max(f.results.ExitCode, statusview.ExitNotOK)
		}
		if is, _ := document.IsData(format); is {
			return f.results.ExitCode, document.WriteData(out, format, f.results)
		}
		view.Now = time.Now()
		return f.results.ExitCode, view.PrintNodes(out, answers)
	}
}

// readStatus asks all nodes for their state.
func (f *fleet) readStatus(ctx context.Context, args []string) ([]statusview.NodeAnswer, error) {
	err := f.readNodes(ctx, args, func(r *result) error {
		a, err := statusview.ParseAnswer(r.Answer)
		if err == nil && !a.OK { // whatever its exit code says
			r.ExitCode = max(r.ExitCode, statusview.ExitNotOK)
		}
		return err
	})
	var all []statusview.NodeAnswer
	for _, r := range f.results.Nodes {
		a := statusview.NodeAnswer{Node: r.Node, Pod: r.Pod, Error: r.Error, Code: r.ExitCode}
		if r.Error == "" {
			a.Answer, _ = statusview.ParseAnswer(r.Answer) // it was read before
		}
		all = append(all, a)
	}
	return all, err
}
