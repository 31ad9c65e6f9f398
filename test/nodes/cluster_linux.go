// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"kubeproxy/test/cache"
)

// Cluster is a cluster on this machine.
type Cluster struct {
	// Name distinguishes clusters that exist at the same time. It is empty for the
	// usual one.
	Name string
	// Nodes is how many nodes it has: n1, n2 and so on.
	Nodes int
	// Programs is a folder with kubectl, ctr, helm and whatever else runs in it.
	Programs string
	// Embedded is the mode of a kube-proxy that runs on each node without a pod, and empty
	// if there is none.
	Embedded string
	// Network is what connects the pods of different nodes: Flannel, KubeRouter, or routes that every
	// host has from its start if it is empty.
	Network string
	// LocalPort is a port of each node's loopback that leads to the API server, as with
	// Talos. Kubelet uses it. There is none if it is 0.
	LocalPort int
	// Tests is a folder with the tests of Kubernetes. Without, they are built when they are
	// needed.
	Tests string
	// Archives are the images that every node has.
	Archives []string
	// Store is a folder of containerd with further images, of which every node has a copy.
	Store string
	// Rate is how many new connections a second each client makes while something is
	// changed, 0 for DefaultRate. It holds two fifths of that open.
	Rate int

	folder  string
	out     io.Writer
	started time.Time
}

// ErrNone means that no cluster of the name is there.
var ErrNone = errors.New("no cluster; make cluster starts one")

// ErrThere means that the files of a cluster of the same name are there. Since the host has
// booted again, it does not run.
var ErrThere = errors.New("a cluster is there already")

// most is how many nodes a cluster can have: their numbers are the last digit of addresses.
const most = 9

// fitName is what becomes a part of names of namespaces, cgroups and folders.
var fitName = regexp.MustCompile(`^[a-z0-9]{0,20}$`)

// Folder returns where the files of a cluster are.
func Folder(name string) (string, error) {
	if !fitName.MatchString(name) {
		return "", fmt.Errorf("cluster %q: want a name of at most 20 small letters and digits", name)
	}
	if name != "" {
		name = "-" + name
	}
	return cache.Folder("cluster" + name)
}

// descriptionFile describes a cluster in its folder.
const descriptionFile = "cluster.json"

// Open returns the cluster of this name. Progress is reported to out.
func Open(out io.Writer, name string) (*Cluster, error) {
	folder, err := Folder(name)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(folder, descriptionFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNone
	}
	c := &Cluster{Name: name, folder: folder, out: out, started: time.Now()}
	if err == nil {
		err = json.Unmarshal(text, c)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's description %s: %w; %s removes the cluster", file, err, c.DownCommand())
	}
	cache.Touch(filepath.Dir(c.Programs))
	return c, nil
}

// Find returns what is there of a cluster of this name, for Down alone. Its description may
// be missing or broken, as after a full disk, and so may its folder.
func Find(out io.Writer, name string) (*Cluster, error) {
	folder, err := Folder(name)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Name: name, Nodes: most, folder: folder, out: out, started: time.Now()}
	_, err = os.Stat(folder)
	if err == nil || slices.ContainsFunc(c.machines(), (*Machine).hasNamespace) {
		return c, nil
	}
	if errors.Is(err, os.ErrNotExist) {
		err = ErrNone
	}
	return nil, err
}

// machines returns those of the nodes, and the control plane's.
func (c *Cluster) machines() []*Machine {
	var all []*Machine
	for i := range c.Nodes {
		all = append(all, c.Machine(node(i+1)))
	}
	return append(all, c.Machine(control))
}

func (c *Cluster) save() error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	next := c.path(descriptionFile + ".next")
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, c.path(descriptionFile))
}

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.folder}, elements...)...)
}

// progress reports a line with the time since the start.
func (c *Cluster) progress(format string, args ...any) {
	fmt.Fprintf(c.out, "%6.1fs  %s\n", time.Since(c.started).Seconds(), fmt.Sprintf(format, args...))
}

// Up starts a cluster: its nodes are ready when it returns. No service proxy runs yet,
// and so the DNS of the cluster does not answer.
func Up(ctx context.Context, out io.Writer, c *Cluster) error {
	if c.Nodes < 1 || c.Nodes > most {
		return fmt.Errorf("%d nodes: want 1 to %d", c.Nodes, most)
	}
	var err error
	if c.folder, err = Folder(c.Name); err != nil {
		return err
	}
	c.out, c.started = out, time.Now()
	if _, err := os.Stat(c.path(descriptionFile)); err == nil {
		return fmt.Errorf("%w, in %s; %s removes it", ErrThere, c.folder, c.DownCommand())
	}
	if err := Room(c.Nodes); err != nil {
		return err
	}
	if err := os.MkdirAll(c.path("pki"), 0o700); err != nil {
		return err
	}
	if err := c.save(); err != nil { // first, as Down removes what it describes
		return err
	}
	for _, step := range []func(context.Context) error{c.startControl, c.startNodes, c.awaitNodes} {
		if err := step(ctx); err != nil {
			return c.Explain(err)
		}
	}
	return nil
}

// Explain adds to the error of a step what the logs say, and how the cluster is removed.
func (c *Cluster) Explain(err error) error {
	return errors.Join(err, c.complaints(), errors.New(c.DownCommand()+" removes what is there"))
}

// DownCommand returns what a user types to remove the cluster.
func (c *Cluster) DownCommand() string {
	if c.Name != "" {
		return "make cluster-down CLUSTER=" + c.Name
	}
	return "make cluster-down"
}

func (c *Cluster) startNodes(ctx context.Context) error {
	for i := range c.Nodes {
		if err := c.startNode(ctx, i+1); err != nil {
			return fmt.Errorf("start node n%d: %w", i+1, err)
		}
	}
	return nil
}

// Down ends the cluster and removes everything that belongs to it. It goes on after a
// failure, so that a second try has less to do.
func (c *Cluster) Down() error {
	if c.folder == "" {
		return nil // Up refused it
	}
	var errs []error
	for _, m := range c.machines() {
		errs = append(errs, m.remove())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(c.folder)
}
