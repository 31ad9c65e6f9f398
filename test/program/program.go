// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package program runs the product's own program in tests. It builds it once for a
// process of tests, starts it on a host of a netlab network, reads its log, sends HTTP
// requests to it from that host, and reads its costs and the state that it left in the
// kernel. The tests define the Services, and the expected results.
//
// In a package of tests:
//
//	var kubeProxy program.Program
//
//	func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }
//
//	func TestSomething(t *testing.T) {
//		lab := netlab.Start(t, netlab.Config{})
//		p := kubeProxy.Start(t, lab.Node, "--manifests="+dir)
//		p.AwaitLog(t, `"Programmed"`, "IPv4")
//	}
package program

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/yaml"

	"kubeproxy/test/kit"
)

// Log is the output of a program that may still run.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns all of it so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Has returns whether a line contains all of words.
func (l *Log) Has(words ...string) bool { return l.Count(words...) > 0 }

// Count returns how many lines contain all of words.
func (l *Log) Count(words ...string) int {
	n := 0
	for line := range strings.Lines(l.String()) {
		all := true
		for _, w := range words {
			all = all && strings.Contains(line, w)
		}
		if all {
			n++
		}
	}
	return n
}

// Manifest returns objects as the documents of one YAML file.
func Manifest[T any](t *testing.T, objects ...T) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		kit.Must(t, err)
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes()
}
