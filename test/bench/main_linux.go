// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// The bench measures the path from Kubernetes objects to the kernel, and new connections
// through the programmed rules. It compares them with a floor: a bare loop over a netlink
// library for the same map elements, and connections without rules. Each measurement runs
// in a process of its own, in network namespaces that end with it. The output is a
// document with a table for each part. Tests check correctness; the bench only refuses to
// time something that does not work.
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
	"strconv"
	"strings"
	"syscall"

	"kubeproxy/test/netlab"
	"kubeproxy/test/vm"
)

// options are the command line.
type options struct {
	sizes sizes
	quick bool
	out   string // file for the document, "" for none
	peer  string // a kube-proxy to measure beside ours, "" for none
	only  string // the name of a part, "" for all
	// kernel is the kernel for mode ipvs: one of the virtual machines' or ownKernel.
	kernel string
}

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
	// A child dies with the thread that started it, see prctl(2). That must be a thread
	// that lives as long as the process: the first.
	runtime.LockOSThread()
	o := options{sizes: sizes{1000, 10000, 30000}, peer: os.Getenv("PEER_KUBE_PROXY")}
	flag.Var(&o.sizes, "n", "numbers of Services, separated by commas")
	flag.BoolVar(&o.quick, "quick", false, "take few samples, to see that it works; the figures mean little")
	flag.StringVar(&o.only, "only", "", "measure one `part` of "+partNames()+"; all by default")
	flag.StringVar(&o.kernel, "kernel", vm.DefaultKernel, "`kernel` of the virtual machine that mode ipvs is measured in, one of "+strings.Join(vm.Kernels, ", ")+
		", or "+ownKernel+" for this machine itself")
	flag.StringVar(&o.out, "o", "", "`file` to write the tables to, with a text about them; it keeps what it has of other parts")
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
	b := &bench{options: o, out: out}
	err := b.measure(ctx)
	if ctx.Err() != nil {
		return errors.New("interrupted; what was complete is written, nothing else is left behind")
	}
	return err
}

// bench is one run.
type bench struct {
	options
	out   io.Writer
	facts facts // of the part that is being measured
}

// measure measures the selected parts. It writes a part when it is complete.
func (b *bench) measure(ctx context.Context) error {
	list, err := chosen(b.only)
	if err != nil {
		return err
	}
	var d *document
	if b.options.out != "" { // check the file before an hour of measurements
		if d, err = openDocument(b.options.out); err != nil {
			return err
		}
	}
	for _, p := range list {
		s, err := b.run(ctx, p)
		if b.only == "" && (errors.Is(err, vm.ErrMissing) || errors.Is(err, errNotPossible)) {
			fmt.Fprintf(b.out, "\n%s was not measured: %v\n", p.title, err)
			continue
		}
		if err != nil {
			return err
		}
		if d == nil {
			continue
		}
		if err := d.put(s); err != nil {
			return err
		}
	}
	return nil
}

// measureInside measures the path between a source and the kernel.
func (b *bench) measureInside(ctx context.Context, s *section) error {
	s.how = howMeasured
	b.notePeer(s, howPeer)
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
		s.add(b.out, t)
	}
	return nil
}

// notePeer notes in s that there is no peer, or what the peer is.
func (b *bench) notePeer(s *section, about string) {
	if b.peer == "" {
		s.note(b.out, noPeer)
		return
	}
	s.how += about
}

const noPeer = "No peer was measured: PEER_KUBE_PROXY names none."

// measureSize measures floor and ours in turn, a few times, and the peer, which takes
// longest, once.
func (b *bench) measureSize(ctx context.Context, services int) (table, error) {
	t := table{services: services, rows: rows, base: "floor"}
	t.title = fmt.Sprintf("%s Services of %d endpoints", thousands(services), perService)
	runs, err := b.alternate(ctx, task{Services: services}, roleFloor, roleOurs)
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
