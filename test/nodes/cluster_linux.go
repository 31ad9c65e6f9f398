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

// ErrNone means that no cluster runs.
var ErrNone = errors.New("no cluster; make cluster starts one")

// ErrThere means that a cluster of the same name runs.
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

// Open returns the cluster of this name that runs. Progress is reported to out.
func Open(out io.Writer, name string) (*Cluster, error) {
	folder, err := Folder(name)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(folder, "cluster.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNone
	}
	c := &Cluster{folder: folder, out: out, started: time.Now()}
	if err == nil {
		err = json.Unmarshal(text, c)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's description: %w", err)
	}
	return c, nil
}

func (c *Cluster) save() error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(c.path("cluster.json"), text, 0o600)
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
	if _, err := os.Stat(c.path("cluster.json")); err == nil {
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
			return errors.Join(err, c.complaints(), errors.New(c.DownCommand()+" removes what is there"))
		}
	}
	return nil
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
	for i := range c.Nodes {
		errs = append(errs, c.Machine(node(i+1)).remove())
	}
	errs = append(errs, c.Machine(control).remove())
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(c.folder)
}
