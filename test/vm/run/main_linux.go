// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command run runs one command in a virtual machine with another kernel, as package vm
// describes. Its exit code is the command's, or 124 if that took too long, 125 if the
// machine died, and 126 if the machine could not be created. It can run tests:
//
//	go test -exec 'go run kubeproxy/test/vm/run' ./platform/linux/...
//
// The folder testdata of the package is copied in, with its README, and the examples and
// the deployments of the module. Coverage and profiles are copied back.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"kubeproxy/test/cluster"
	"kubeproxy/test/vm"
)

// Exit codes of a command without a result.
const (
	exitTimeout = 124
	exitDied    = 125
	exitSetUp   = 126
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "vm:", err)
	}
	os.Exit(code)
}

// pairs is a flag that may be given more than once, FROM:TO each.
type pairs map[string]string

func (p pairs) String() string { return "" }

func (p pairs) Set(s string) error {
	from, to, ok := strings.Cut(s, ":")
	if !ok {
		to = from
	}
	if !filepath.IsAbs(to) {
		return fmt.Errorf("must be FROM:TO, and TO an absolute path")
	}
	p[from] = to
	return nil
}

// options are the flags that are not part of the job.
type options struct {
	kernel  string
	fetch   bool
	verbose bool
	// controlPlane installs the programs that test/cluster runs.
	controlPlane bool
}

func parse(args []string) (options, vm.Job, error) {
	j := vm.Job{Files: map[string]string{}, Outputs: map[string]string{}, Stdout: os.Stdout, Stderr: os.Stderr}
	var o options
	flags := flag.NewFlagSet("run [flags] [--] command", flag.ContinueOnError)
	flags.StringVar(&o.kernel, "kernel", vm.DefaultKernel, "one of "+strings.Join(vm.Kernels, ", "))
	flags.IntVar(&j.CPUs, "cpus", 1, "processors of the machine; with one it has a clock of its own")
	flags.BoolVar(&j.Cmpxchg16b, "cmpxchg16b", false, "give the processors that instruction, which crashes kernel 6.12")
	flags.BoolVar(&j.Fast, "fast", false, "make a machine with a clock of its own twice as fast by that clock")
	flags.StringVar(&j.Disk, "disk", "", "`file` with an ext4 file system, which the machine finds at /disk; what it writes there is lost")
	flags.IntVar(&j.Memory, "memory", 2048, "memory of the machine, in MB")
	flags.DurationVar(&j.Timeout, "timeout", 0, "until the machine is given up, by this machine's clock; unset: 10m, or thrice -test.timeout")
	flags.Var(pairs(j.Files), "file", "`FROM:TO`, a file or folder to bring in; more than once")
	flags.Var(pairs(j.Outputs), "out", "`FROM:TO`, a file or folder of the machine to bring back; more than once")
	flags.BoolVar(&j.Proxy, "proxy", false, "build kube-proxy and bring it in, for tests that run it")
	flags.BoolVar(&o.controlPlane, "controlplane", false, "bring etcd and kube-apiserver in, built if nobody has, for tests that run them")
	flags.BoolVar(&o.fetch, "fetch", false, "only fetch the kernel, and print its version; nothing is printed where no machine can be made")
	flags.BoolVar(&o.verbose, "v", false, "tell how long the machine took")
	load := flags.String("modules", "", "modules to load beside the usual ones, separated by commas")
	env := flags.String("env", "", "names of variables to pass on, separated by commas")
	if err := flags.Parse(args); err != nil {
		return o, j, err
	}
	j.Modules = strings.FieldsFunc(*load, comma)
	for _, name := range strings.FieldsFunc(*env, comma) {
		j.Env = append(j.Env, name+"="+os.Getenv(name))
	}
	j.Command = flags.Args()
	if len(j.Command) == 0 && !o.fetch {
		return o, j, errors.New("no command to run; run -help lists the flags")
	}
	return o, j, nil
}

func comma(r rune) bool { return r == ',' }

func run(ctx context.Context, args []string) (int, error) {
	o, j, err := parse(args)
	if err != nil {
		return exitSetUp, err
	}
	m, err := vm.Prepare(ctx, o.kernel, os.Stderr)
	if o.fetch && errors.Is(err, vm.ErrMissing) {
		return 0, err // no download for a machine that cannot run
	}
	if err != nil {
		return exitSetUp, err
	}
	if o.fetch {
		fmt.Println(m.Release())
		return 0, nil
	}
	if err := prepare(ctx, o, &j); err != nil {
		return exitSetUp, err
	}
	start := time.Now()
	code, err := m.Run(ctx, j)
	if o.verbose {
		fmt.Fprintf(os.Stderr, "vm: kernel %s ran for %s, exit code %d\n", m.Release(), time.Since(start).Round(10*time.Millisecond), code)
	}
	switch {
	case errors.Is(err, vm.ErrTimeout):
		return exitTimeout, err
	case errors.Is(err, vm.ErrDied):
		return exitDied, err
	case err != nil:
		return exitSetUp, err
	}
	return code, nil
}

// prepare adds the files that a test expects to j, and the name of its kernel.
func prepare(ctx context.Context, o options, j *vm.Job) error {
	var err error
	if j.Dir, err = os.Getwd(); err != nil {
		return err
	}
	j.Env = append(j.Env, vm.Variable+"="+o.kernel)
	for _, name := range []string{"GODEBUG", "GOMAXPROCS", "GOTRACEBACK"} {
		if v, ok := os.LookupEnv(name); ok {
			j.Env = append(j.Env, name+"="+v)
		}
	}
	if o.controlPlane {
		if err := addControlPlane(ctx, j); err != nil {
			return err
		}
	}
	paths := append(shared(j.Dir), filepath.Join(j.Dir, "testdata"), filepath.Join(j.Dir, "README.md"))
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			j.Files[path] = path
		}
	}
	return testFlags(j)
}

// controlPlaneInside is the folder of etcd and kube-apiserver in a machine.
const controlPlaneInside = "/usr/local/lib/controlplane"

func addControlPlane(ctx context.Context, j *vm.Job) error {
	programs, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return err
	}
	for _, file := range []string{programs.Etcd, programs.APIServer} {
		j.Files[file] = filepath.Join(controlPlaneInside, filepath.Base(file))
	}
	j.Env = append(j.Env, vm.ControlPlaneVariable+"="+controlPlaneInside)
	return nil
}

// shared are the folders, of the module that contains dir, in which tests of several
// packages read.
func shared(dir string) []string {
	for at := dir; at != filepath.Dir(at); at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return []string{filepath.Join(at, "docs", "examples"), filepath.Join(at, "build", "deploy")}
		}
	}
	return nil
}

// profiles are the flags of a test that name output files.
var profiles = []string{"coverprofile", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace", "gocoverdir"}

// testFlags adds the files that a test writes to the outputs, and gives the job the
// timeout of the test. The machine's clock may be slower than this one's, and a test that
// hangs should report that itself.
func testFlags(j *vm.Job) error {
	for _, arg := range j.Command[1:] {
		name, value, ok := strings.Cut(strings.TrimPrefix(arg, "-test."), "=")
		if !ok || name == arg {
			continue
		}
		if slices.Contains(profiles, name) {
			file, err := filepath.Abs(value)
			if err != nil {
				return err
			}
			j.Outputs[file] = file
		}
		if d, err := time.ParseDuration(value); name == "timeout" && err == nil && d > 0 && j.Timeout == 0 {
			j.Timeout = 3 * d
		}
	}
	return nil
}
