// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"kubeproxy/test/netlab"
)

// options are the command line.
type options struct {
	sizes sizes
	quick bool
	out   string // file for the document, "" for none
	peer  string // a kube-proxy to measure beside ours, "" for none
	parts parts
}

// parts say what is measured.
type parts string

const (
	everything parts = ""
	onlyServed parts = "served" // through an API server
	onlyChains parts = "iptables"
	onlyInside parts = "inside" // the rest
)

// sizes are numbers of Services, each of which gets a table.
type sizes []int

// String implements flag.Value.
func (s *sizes) String() string {
	var words []string
	for _, n := range *s {
		words = append(words, strconv.Itoa(n))
	}
	return strings.Join(words, ",")
}

// Set implements flag.Value.
func (s *sizes) Set(text string) error {
	*s = nil
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > maxServices {
			return fmt.Errorf("%q is not a number of Services: want 1 to %d", word, maxServices)
		}
		*s = append(*s, n)
	}
	return nil
}

func main() {
	// A child dies with the thread that started it, so that must be one that
	// lives as long as the process: the first.
	runtime.LockOSThread()
	o := options{sizes: sizes{1000, 10000, 30000}, peer: os.Getenv("PEER_KUBE_PROXY")}
	flag.Var(&o.sizes, "n", "numbers of Services, separated by commas")
	flag.BoolVar(&o.quick, "quick", false, "take few samples, to see that it works; the figures mean little")
	flag.StringVar((*string)(&o.parts), "only", "", "measure one `part`: served is through an API server, iptables is that mode, inside is the rest; everything by default")
	flag.StringVar(&o.out, "o", "", "`file` to write the tables to, with a text about them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run is the whole program, in the parent as in its children.
func run(ctx context.Context, o options, out io.Writer) error {
	if flag.NArg() > 0 {
		return fmt.Errorf("argument %q: want flags only", flag.Arg(0))
	}
	if err := netlab.Enter(); err != nil {
		return err
	}
	if t, ok := assigned(); ok {
		return t.work(ctx, out)
	}
	b := &bench{options: o, out: out, started: time.Now()}
	err := b.measure(ctx)
	if ctx.Err() != nil {
		return errors.New("interrupted; nothing is left behind")
	}
	return err
}

// bench is one run.
type bench struct {
	options
	out     io.Writer
	started time.Time
	facts   facts
	tables  []table
	served  table   // through an API server
	chains  []table // of iptables
}

// measure measures everything and prints each table when it is complete.
func (b *bench) measure(ctx context.Context) error {
	var err error
	if b.facts, err = readFacts(b.started); err != nil {
		return err
	}
	fmt.Fprint(b.out, b.facts.text())
	for _, m := range []struct {
		part    parts
		measure func(context.Context) error
	}{{onlyInside, b.measureInside}, {onlyServed, b.measureServed}, {onlyChains, b.measureIPTables}} {
		if b.parts != everything && b.parts != m.part {
			continue
		}
		if err := m.measure(ctx); err != nil {
			return err
		}
	}
	if b.peer == "" {
		fmt.Fprintf(b.out, "\n%s\n", noPeer)
	}
	fmt.Fprintf(b.out, "\n%s\n", b.summary())
	if b.options.out == "" {
		return nil
	}
	return b.write()
}

// measureInside measures what runs between a source and the kernel.
func (b *bench) measureInside(ctx context.Context) error {
	few, err := b.child(ctx, task{Role: roleFew, Services: fewServices})
	if err != nil {
		return err
	}
	for _, n := range b.sizes {
		t, err := b.measureSize(ctx, n)
		if err != nil {
			return err
		}
		t.few = few
		b.tables = append(b.tables, t)
		fmt.Fprintf(b.out, "\n%s", t.text())
	}
	return nil
}

const noPeer = "No peer was measured: PEER_KUBE_PROXY names none."

// measureSize measures floor and ours in turn, a few times, and the peer,
// which takes longest, once.
func (b *bench) measureSize(ctx context.Context, services int) (table, error) {
	t := table{services: services}
	runs, err := b.inTurn(ctx, task{Services: services}, roleFloor, roleOurs)
	for r, f := range runs {
		t.add(r, f)
	}
	if b.peer == "" || err != nil {
		return t, err
	}
	f, err := b.child(ctx, task{Role: rolePeer, Services: services})
	t.add(rolePeer, f)
	return t, err
}

func (b *bench) repeats() int {
	if b.quick {
		return 1
	}
	return 3
}

// all are the tables that there are.
func (b *bench) all() []table {
	all := append(slices.Clone(b.tables), b.chains...)
	if b.served.by == nil {
		return all
	}
	return append(all, b.served)
}

// summary is the last line of the output.
func (b *bench) summary() string {
	met, missed := 0, 0
	for _, t := range b.all() {
		for _, l := range t.lines() {
			switch l.met {
			case "met":
				met++
			case "missed":
				missed++
			}
		}
	}
	return fmt.Sprintf("%d aims met, %d missed. Load average (1 min) %s before, at most %s during. Took %.0f s.",
		met, missed, b.facts.loadBefore, b.facts.loadDuring, time.Since(b.started).Seconds())
}
