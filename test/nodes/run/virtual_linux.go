// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/test/cache"
	"kubeproxy/test/nodes"
	"kubeproxy/test/vm"
)

// virtual is a trial in a virtual machine, for a mode that this machine's kernel does not
// have. By its clock it is no slower than a small machine: time passes as instructions are
// executed, so the timeouts of Kubernetes hold there, and only people wait longer.
type virtual struct {
	kernel  string
	timeout time.Duration
	// parts is the folder with the parts of clusters, within the machine.
	parts string
}

func (v *virtual) add(flags *flag.FlagSet) {
	flags.StringVar(&v.kernel, "kernel", "", "run in a virtual machine with this `kernel`: one of "+strings.Join(vm.Kernels, ", ")+"; empty does so for mode ipvs where this kernel has no IPVS")
	flags.DurationVar(&v.timeout, "vm-timeout", 8*time.Hour, "until the virtual machine is given up")
	flags.StringVar(&v.parts, "parts", "", "`folder` with the parts of clusters, in a machine in which nothing can be built")
}

// wanted returns whether a trial of a mode has to run in a virtual machine.
func (v *virtual) wanted(mode string) bool {
	return v.parts == "" && (v.kernel != "" || mode == "ipvs" && !ipvs.Installed())
}

// memory is that of the machine, in MB. Each node has a copy of the images in it.
const memory = 7680

// hostFiles are files of this machine that clusters use. The machine has others already.
var hostFiles = []string{
	"/usr/bin/curl", "/usr/bin/mount", "/usr/bin/nice", "/usr/bin/nsenter", "/usr/bin/socat", "/usr/bin/umount", "/usr/bin/unshare", "/usr/lib/cni", "/usr/sbin/runc",
}

// slowRate is the rate of new connections of each client in the machine. That of others
// would keep its processor busy.
const slowRate = 5

// Where the machine has its disk, and leaves its results.
const (
	diskInside    = "/disk"
	cacheInside   = "/root/.cache"
	resultsInside = "/root/results.json"
	pageInside    = "/root/results.md"
)

// inMachine runs the command in a virtual machine, and records what it found.
func (t *trial) inMachine(ctx context.Context, command string, args []string) (err error) {
	if t.network != "" || t.port != 0 {
		return errors.New("-network and -api-port are not for a virtual machine")
	}
	if _, err := t.archive(); err != nil { // before anything that takes long
		return err
	}
	start := time.Now()
	kernel := t.kernel
	if kernel == "" {
		kernel = vm.DefaultKernel
		fmt.Println("this kernel has no IPVS; going on in a virtual machine, which takes long: a cluster alone is five minutes there")
	}
	m, err := vm.Prepare(ctx, kernel, os.Stdout)
	if err != nil {
		return err
	}
	c, err := t.build(ctx, usual)
	if err != nil {
		return err
	}
	c.Archives = append(c.Archives, t.more...)
	folder, err := makeFolder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	disk := filepath.Join(folder, "disk")
	if err := makeDisk(ctx, c, filepath.Join(folder, "parts"), disk); err != nil {
		return fmt.Errorf("make the disk of the virtual machine: %w", err)
	}
	fmt.Printf("%6.1fs  starting the virtual machine, with kernel %s; the times that follow are by its clock\n", time.Since(start).Seconds(), m.Release())
	job, err := t.job(command, args, disk)
	if err != nil {
		return err
	}
	results := filepath.Join(folder, "results.json")
	job.Outputs[resultsInside] = results
	code, err := m.Run(ctx, job)
	fmt.Printf("%6.1fs  the virtual machine has ended\n", time.Since(start).Seconds())
	if err := errors.Join(err, t.merge(results)); err != nil { // some files may be there, and others not
		return err
	}
	if code != 0 {
		return fmt.Errorf("in the virtual machine: exit code %d", code)
	}
	return nil
}

// makeFolder makes a folder for a disk, in one file system with the programs. Those that
// killed commands left behind go, once they are old.
func makeFolder() (string, error) {
	all, err := cache.Folder("parts")
	if err == nil {
		err = os.MkdirAll(all, 0o755)
	}
	if err == nil {
		err = cache.Prune(all)
	}
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(all, "")
}

// makeDisk makes a disk with the parts of a cluster. Most of it is empty, and takes no
// room in this machine's file system.
func makeDisk(ctx context.Context, c *nodes.Cluster, parts, disk string) error {
	if err := os.Mkdir(parts, 0o755); err != nil {
		return err
	}
	if err := c.Pack(ctx, parts, diskInside); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "/sbin/mkfs.ext4", "-q", "-O", "^has_journal", "-d", parts, disk, "4G").CombinedOutput()
	if err != nil {
		return fmt.Errorf("mkfs.ext4: %w\n%s", err, out)
	}
	return os.RemoveAll(parts)
}

// job is what runs in the machine: this command with the same arguments, and later ones
// that go before them.
func (t *trial) job(command string, args []string, disk string) (vm.Job, error) {
	self, err := os.Executable()
	if err != nil {
		return vm.Job{}, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return vm.Job{}, err
	}
	j := vm.Job{
		Dir: dir, Disk: disk, Fast: true, Memory: memory, Timeout: t.timeout, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: []string{"XDG_CACHE_HOME=" + cacheInside}, Modules: []string{"overlay"}, Files: map[string]string{}, Outputs: map[string]string{},
	}
	j.Command = append([]string{self, command}, args...)
	if command == changesCommand && t.rate == 0 {
		j.Command = append(j.Command, fmt.Sprintf("-rate=%d", slowRate))
	}
	j.Command = append(j.Command, "-parts="+diskInside, "-json="+resultsInside, "-page="+pageInside)
	logs := filepath.Join(dir, filepath.FromSlash(logFolder))
	j.Outputs[logs] = logs
	charts := []string{t.chart.Folder}
	if t.earlier != "" {
		charts = append(charts, t.earlier)
	}
	for _, chart := range charts {
		at, err := filepath.Abs(chart)
		if err != nil {
			return j, err
		}
		j.Files[at] = at
	}
	for _, file := range hostFiles {
		j.Files[file] = file
	}
	return j, nil
}

// merge records what the machine left, if it left something.
func (t *trial) merge(results string) error {
	found, err := nodes.ReadDocument(results)
	if err != nil {
		return err
	}
	for i := range found.Runs {
		err = errors.Join(err, t.record(&found.Runs[i], nil))
	}
	for i := range found.Changes {
		err = errors.Join(err, t.record(nil, &found.Changes[i]))
	}
	return err
}
