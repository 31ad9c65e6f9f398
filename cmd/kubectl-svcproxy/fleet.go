// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"kubeproxy/common/doctor"
	"kubeproxy/common/document"
	"kubeproxy/common/printable"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/statusview"
	"kubeproxy/common/terminal"
	"kubeproxy/common/trafficview"
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
	// nodeTime is how long a node may take beside what the command line gives it, longTime with
	// many checks.
	nodeTime = time.Minute
	longTime = 10 * time.Minute
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
	// format is the value of --output, and args are the other arguments of the command.
	format  string
	args    []string
	results results
}

// all runs the command on every node, and prints what they answer together.
func (p *plugin) all(ctx context.Context, out, problems io.Writer) (int, error) {
	f := &fleet{plugin: p, problems: problems}
	f.format, f.args = option(p.command[1:], "--output", "-o")
	if terminal.Attached(os.Stderr) {
		f.progress = problems
	}
	return fleets[p.command[0]](f, ctx, out)
}

// fleets are the commands that run on many nodes.
var fleets = map[string]func(*fleet, context.Context, io.Writer) (int, error){
	"status": (*fleet).status, "doctor": (*fleet).doctor, "top": (*fleet).top, "support-dump": (*fleet).dump,
}

// readNodes asks all nodes, with arguments for each. take gets each answer, and returns why it
// cannot be used.
func (f *fleet) readNodes(ctx context.Context, args []string, take func(*result) error) error {
	var err error
	if f.targets, err = f.plugin.targets(f.problems); err != nil {
		return err
	}
	f.results = results{Nodes: make([]result, len(f.targets))}
	f.each(func(i int) { f.results.Nodes[i] = *f.readNode(ctx, &f.targets[i], args) })
	for i := range f.results.Nodes {
		r := &f.results.Nodes[i]
		if r.Error == "" {
			if err := take(r); err != nil {
				*r = result{Node: r.Node, Pod: r.Pod, ExitCode: exitFailed, Error: err.Error()}
			}
		}
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

// timeOf is how long a node may take: what the command needs, and all times that its arguments have.
func timeOf(args []string) time.Duration {
	all := nodeTime
	if args[0] == "doctor" || args[0] == "support-dump" {
		all = longTime
	}
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
	format, args := cmp.Or(f.format, string(statusview.Table)), f.args
	view := statusview.View{Format: statusview.Format(format), Full: namesService(args), Colour: terminal.Coloured(out), Width: terminal.Columns(out)}
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
	switch err := document.CheckOutput(format, string(statusview.Table), string(statusview.Wide), string(statusview.Name)); {
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
		case until != "" && !met && time.Now().Add(pause).Before(end) && reconcile.Pause(ctx, pause):
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
func (f *fleet) readStatus(ctx context.Context, args []string) (all []statusview.NodeAnswer, err error) {
	answers := map[string]*statusview.Answer{}
	err = f.readNodes(ctx, args, func(r *result) error {
		a, err := statusview.ParseAnswer(r.Answer)
		if err == nil && !a.OK { // whatever its exit code says
			r.ExitCode = max(r.ExitCode, statusview.ExitNotOK)
		}
		answers[r.Node] = a
		return err
	})
	for _, r := range f.results.Nodes {
		all = append(all, statusview.NodeAnswer{Node: r.Node, Pod: r.Pod, Answer: answers[r.Node], Error: r.Error, Code: r.ExitCode})
	}
	return all, err
}

// doctor prints what is found, equal findings of nodes once.
func (f *fleet) doctor(ctx context.Context, out io.Writer) (int, error) {
	all, _ := given(f.args, "--all")
	var reports []*doctor.Report
	return f.merged(ctx, out, func(r *result) error {
		x := &doctor.Report{}
		if err := json.Unmarshal(r.Answer, x); err != nil || x.Checks == nil {
			return errors.New("it answers something else than the findings of a node")
		}
		x.Node = r.Node // whatever it says
		r.ExitCode = max(r.ExitCode, x.ExitCode())
		reports = append(reports, x)
		return nil
	}, func() error {
		view := doctor.View{Colour: terminal.Coloured(out), Width: terminal.Columns(out), All: all}
		return view.Text(out, doctor.Merge(reports))
	})
}

// top prints what Services carry on all nodes together.
func (f *fleet) top(ctx context.Context, out io.Writer) (int, error) {
	if watch, _ := given(f.args, "--watch", "-w"); watch {
		return 0, errors.New("--watch follows one proxy: want --node NODE with it")
	}
	order, _ := option(f.args, "--sort", "")
	limit := 20
	if text, _ := option(f.args, "--limit", ""); text != "" {
		limit, _ = strconv.Atoi(text) // the nodes say what is wrong with it
	}
	var answers []*trafficview.Answer
	return f.merged(ctx, out, func(r *result) error {
		x := &trafficview.Answer{}
		if err := json.Unmarshal(r.Answer, x); err != nil || x.Time.IsZero() {
			return errors.New("it answers something else than what Services carry")
		}
		x.Node = r.Node
		answers = append(answers, x)
		return nil
	}, func() error {
		view := trafficview.View{Limit: limit, Colour: terminal.Coloured(out), Width: terminal.Columns(out)}
		return view.PrintNodes(out, answers, trafficview.Order(order))
	})
}

// merged asks all nodes, and prints the answers that take keeps, and why there are no others.
func (f *fleet) merged(ctx context.Context, out io.Writer, take func(*result) error, text func() error) (int, error) {
	if err := document.CheckOutput(cmp.Or(f.format, "text"), "text", string(statusview.Table)); err != nil {
		return 0, err
	}
	if err := f.readNodes(ctx, append([]string{f.command[0], "--output=json"}, f.args...), take); err != nil {
		return 0, err
	}
	if is, _ := document.IsData(f.format); is {
		return f.results.ExitCode, document.WriteData(out, f.format, f.results)
	}
	if slices.ContainsFunc(f.results.Nodes, func(r result) bool { return r.Error == "" }) {
		if err := text(); err != nil {
			return 0, err
		}
	}
	return f.results.ExitCode, f.silent(out)
}

// silent names the nodes that gave no answer.
func (f *fleet) silent(out io.Writer) error {
	t := &document.Table{Head: "NO ANSWER|WHY", Width: terminal.Columns(out), Colours: terminal.Coloured(out)}
	for _, r := range f.results.Nodes {
		if r.Error != "" {
			t.Rows = append(t.Rows, []document.Cell{{Text: printable.Text(r.Node), Colour: document.Red}, document.Plain(printable.Text(r.Error))})
		}
	}
	if t.Rows == nil {
		return nil
	}
	b := bytes.NewBufferString("\n")
	t.Write(b)
	_, err := out.Write(b.Bytes())
	return err
}

// dump writes an archive for each node.
func (f *fleet) dump(ctx context.Context, out io.Writer) (int, error) {
	name, args := f.archiveName()
	if name == "" {
		return 0, errors.New("support-dump -: the archives of many nodes: want a FILE, or --node NODE")
	}
	var err error
	if f.targets, err = f.plugin.targets(f.problems); err != nil {
		return 0, err
	}
	f.results.Nodes = make([]result, len(f.targets))
	base, ending := name, ""
	if i := strings.Index(filepath.Base(name), "."); i > 0 {
		base, ending = name[:len(name)-len(filepath.Base(name))+i], filepath.Base(name)[i:]
	}
	f.each(func(i int) {
		t := &f.targets[i]
		r := &f.results.Nodes[i]
		*r = result{Node: t.node, ExitCode: exitFailed, Error: t.why}
		if t.pod != nil {
			r.ExitCode, r.Error = f.dumpNode(ctx, t, base+"-"+t.node+ending, args)
		}
	})
	for i, r := range f.results.Nodes {
		if path := base + "-" + f.targets[i].node + ending; r.Error == "" {
			fmt.Fprintln(out, printable.Text(path))
		}
		f.results.ExitCode = max(f.results.ExitCode, r.ExitCode)
	}
	return f.results.ExitCode, f.silent(out)
}

// dumpNode writes the archive of a node. Without an error it is whole.
func (f *fleet) dumpNode(ctx context.Context, t *target, path string, args []string) (code int, why string) {
	if !filepath.IsLocal(t.node) || strings.ContainsAny(t.node, `/\`) {
		return exitFailed, "its name is no part of a file name"
	}
	cmd, err := f.exec(t.pod, args, nil, nil)
	if err != nil {
		return exitFailed, err.Error()
	}
	file, err := create(path)
	if err != nil {
		return exitFailed, err.Error()
	}
	problems := &bounded{most: 1 << 16}
	err = runFor(ctx, cmd, timeOf(args), file, problems)
	size, closeErr := file.Seek(0, io.SeekCurrent)
	closeErr = errors.Join(closeErr, file.Close())
	ended, whole := errors.AsType[*exec.ExitError](err)
	switch whole = err == nil || whole && ended.ExitCode() == 1; {
	case closeErr != nil:
		err = closeErr
	case whole && size > 0 && err != nil: // a part is not in it
		f.warn(f.problems, fmt.Errorf("node %s: %s", t.node, lastLine(problems.text, err.Error())))
		return 1, ""
	case whole && size > 0:
		return 0, ""
	}
	_ = os.Remove(path) // what is not whole misleads
	return exitFailed, lastLine(problems.text, fmt.Sprint(cmp.Or(err, errors.New("the archive is empty"))))
}
