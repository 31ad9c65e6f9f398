// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"kubeproxy/test/kit"
)

// deadPatience is how long clients wait while a node is dead: a client's TCP has repeated
// its first packet after 1 s, 3 s and 7 s.
const deadPatience = 8 * time.Second

// hanging is from when a request on a held connection hangs.
const hanging = 5 * time.Second

// mostLate is of how many new connections one may take over 3 s with this proxy. Of those with
// kube-proxy one of four does: a client draws a dead endpoint, and its kernel keeps it to that.
const mostLate = 50

// deadSequence has the power of a node with pods taken.
var deadSequence = Sequence{Paired: true, Trials: []Trial{
	{Name: "dead-known", About: "a node that stays without power, with kubeadm's kube-proxy", Tolerated: OfOthers, Patience: deadPatience, Note: deadNote, change: dead, finish: revive},
	{Name: "dead", About: "a node that stays without power", Tolerated: Anything, Patience: deadPatience, Note: deadNote, prepare: replaceKnown, change: dead, finish: revive},
}}

const deadNote = "until the API server misses the node, it calls its pods ready"

func (t Trial) judgeLate(f Flow) error {
	if t.Tolerated == OfOthers || f.Over3s <= f.New/mostLate {
		return nil
	}
	return fmt.Errorf("%s: %d of %d new connections of %s took over 3 s, want at most one of %d", t.About, f.Over3s, f.New, f.Name, mostLate)
}

func (l Load) patience() time.Duration { return cmp.Or(l.Patience, answerTimeout) }

// late counts a new connection that took longer than its client likes. The caller holds the
// lock.
func (l *load) late(took time.Duration, err error) {
	if l.Patience == 0 || l.Network != "tcp" {
		return
	}
	if err != nil || took > 1200*time.Millisecond {
		l.counts.Over1s++
	}
	if err != nil || took > 3*time.Second {
		l.counts.Over3s++
	}
}

// replaceKnown installs this proxy where the cluster has kubeadm's.
func replaceKnown(ctx context.Context, c *Cluster, s Setting) error {
	found, err := c.kubectl(ctx, "", "-n", system, "get", "daemonset", "kube-proxy", "--ignore-not-found", "-o", "name")
	if err != nil || found == "" {
		return err
	}
	return install(ctx, c, s)
}

// dead takes the power of a node, and waits until the API server has missed it.
func dead(ctx context.Context, c *Cluster, _ Setting) error {
	begin := time.Now()
	if err := c.powerOff(3); err != nil {
		return err
	}
	err := poll(ctx, patience, func() (bool, error) {
		text, err := c.kubectl(ctx, "", "-n", loadNamespace, "get", "endpointslices", "-o",
			`jsonpath={range .items[*].endpoints[*]}{.nodeName} {.conditions.ready}{"\n"}{end}`)
		return err == nil && !strings.Contains(text, node(3)+" true"), err
	})
	if err != nil {
		return fmt.Errorf("wait until the API server misses %s: %w", node(3), err)
	}
	c.progress("the API server called the endpoints of %s ready for %s", node(3), time.Since(begin).Round(time.Second))
	pause(ctx, deadPatience) // for what clients have begun
	return nil
}

// revive gives the node its power back, and its share of the pods.
func revive(ctx context.Context, c *Cluster, s Setting) error {
	if err := c.startNode(ctx, 3); err != nil {
		return err
	}
	if err := c.kubectls(ctx, []string{"wait", "--for=condition=Ready", "node/" + node(3), timeout()}); err != nil {
		return err
	}
	return rollApplication(ctx, c, s)
}

func rollApplication(ctx context.Context, c *Cluster, _ Setting) error {
	err := c.kubectls(ctx,
		[]string{"-n", loadNamespace, "rollout", "restart", "deployment/web"},
		[]string{"-n", loadNamespace, "rollout", "status", "deployment/web", timeout()})
	if err != nil {
		return err
	}
	return poll(ctx, patience, func() (bool, error) { // until the last old pod is gone
		pods, err := c.kubectl(ctx, "", "-n", loadNamespace, "get", "pods", "-l", "app=web", "-o", "name")
		return strings.Count(pods, "\n") == replicas, err
	})
}

// replicas is how many pods load.yaml asks for.
const replicas = 6

// writeLate adds what clients waited for while a node was dead.
func (d *Document) writeLate(out *strings.Builder) {
	rows := [][]string{{"change", "mode", "new connections", "over 1.2 s", "over 3 s", "requests that hung for 5 s"}}
	for _, c := range d.Changes {
		if t, ok := c.trial(); ok && t.Patience > 0 {
			sum, _ := c.sum()
			rows = append(rows, []string{c.Name, c.setting(), fmt.Sprint(sum.New), fmt.Sprint(sum.Over1s), fmt.Sprint(sum.Over3s), fmt.Sprint(sum.Hung)})
		}
	}
	if len(rows) > 1 {
		fmt.Fprintf(out, "\nWhile a node is dead, clients wait for %.0f seconds. Over TCP, those that were not answered at all included:\n\n%s", deadPatience.Seconds(), kit.Table(rows))
	}
}
