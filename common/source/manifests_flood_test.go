// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// floods are files of a given size that are made to be expensive.
var floods = map[string]func(size int) string{
	"lines and unknown fields": func(size int) string {
		return "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n" + repeated("\n", size) + unknownFields(2000)
	},
	"unknown fields of many": func(size int) string {
		return repeated("---\napiVersion: v1\nkind: Service\nmetadata:\n  name: a\n"+unknownFields(20), size)
	},
	"unknown fields of a List's items": func(size int) string {
		return "apiVersion: v1\nkind: List\nitems:\n" + repeated("- apiVersion: v1\n  kind: Service\n  odd: 1\n  metadata: {name: a}\n", size)
	},
	"tiny documents":          func(size int) string { return repeated("a\n---\n", size) },
	"tiny objects":            func(size int) string { return repeated("kind: a\napiVersion: b\n---\n", size) },
	"tiny objects, flow":      func(size int) string { return repeated("{kind: a, apiVersion: b}\n---\n", size) },
	"empty objects":           func(size int) string { return repeated("{}", size) },
	"a List of empty objects": func(size int) string { return jsonList("{},", size) },
	"a List of numbers":       func(size int) string { return jsonList("1,", size) },
	"one of many ports": func(size int) string {
		return `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"ports":[` + strings.TrimSuffix(repeated("{},", size), ",") + `]}}`
	},
	"large slices of endpoints":       func(size int) string { return floodOfSlices(`{"addresses":["10.0.0.1"]}`, maxObject-1000, size) },
	"small slices of empty endpoints": func(size int) string { return floodOfSlices(`{}`, 30_000, size) },
	"tiny slices of empty endpoints":  func(size int) string { return floodOfSlices(`{}`, 3000, size) },
	"slices of little endpoints":      func(size int) string { return floodOfSlices(`{"zone":""}`, 100_000, size) },
	"slices of empty addresses": func(size int) string {
		return floodOfSlices(`{"addresses":["","","","","","","","",""]}`, 100_000, size)
	},
	"a sequence":        func(size int) string { return repeated("- a\n", size) },
	"a flow sequence":   func(size int) string { return "[" + repeated("a,", size) + "]" },
	"brackets":          func(size int) string { return repeated("[", size) },
	"dashes":            func(size int) string { return repeated("- ", size) },
	"one key":           func(size int) string { return repeated("a: b\n", size) },
	"many keys":         func(size int) string { return unknownFields(size / 9) },
	"lines":             func(size int) string { return repeated("\n", size) },
	"comments":          func(size int) string { return repeated("#\n", size) },
	"text over lines":   func(size int) string { return `"` + repeated("a\n", size) + `"` },
	"text beyond ASCII": func(size int) string { return repeated("- \u00e4\n", size) },
	"lines of YAML 1.1": func(size int) string { return repeated("- a\u2028", size) },
	"escapes":           func(size int) string { return "a: \"" + repeated("\\u00e4", size) + "\"\n" },
	"aliases of text": func(size int) string {
		return "a: &a " + repeated("x", size/2) + "\nb: [" + repeated("*a,", size/2) + "]\n"
	},
	"aliases of aliases": func(size int) string {
		text := "a: &a0 [x]\n"
		for i := range 20 {
			text += fmt.Sprintf("b%d: &a%d [%s]\n", i, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), 10))
		}
		return repeated(text+"---\n", size)
	},
}

// floodOfSlices has slices with so many bytes of an endpoint each.
func floodOfSlices(endpoint string, each, size int) string {
	var all []string
	for i := range (size + each - 1) / each {
		all = append(all, fmt.Sprintf(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"a%d"},"addressType":"IPv4","endpoints":[%s]}`,
			i, strings.TrimSuffix(repeated(endpoint+",", min(each, size)), ",")))
	}
	return `{"apiVersion":"v1","kind":"List","items":[` + strings.Join(all, ",") + "]}"
}

func repeated(text string, size int) string { return strings.Repeat(text, size/len(text)+1) }

func jsonList(item string, size int) string {
	return `{"apiVersion":"v1","kind":"List","items":[` + strings.TrimSuffix(repeated(item, size), ",") + "]}"
}

func unknownFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	return b.String()
}

// nightly is size, or much more in the long version of the test.
func nightly(size int) int {
	if os.Getenv("KUBEPROXY_NIGHTLY") == "1" {
		return 10 * size
	}
	return size
}

// TestFloods measures the cost of floods: memory in proportion to their size, and few
// messages.
func TestFloods(t *testing.T) {
	for name, flood := range floods {
		t.Run(name, func(t *testing.T) {
			small, large := nightly(1<<20), nightly(4<<20)
			few := decodeFlood(t, flood(small))
			many := decodeFlood(t, flood(large))
			if linear := few/uint64(small)*uint64(large)*3/2 + 160*maxTree; many > linear {
				t.Errorf("%d bytes are allocated for %d, but %d for %d", many, large, few, small)
			}
		})
	}
}

// decodeFlood returns the number of bytes allocated for text.
func decodeFlood(t *testing.T, text string) uint64 {
	t.Helper()
	content := []byte(text)
	d := &decoder{noted: map[string]bool{}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := d.decode(content)
	runtime.ReadMemStats(&after)
	allocated := after.TotalAlloc - before.TotalAlloc
	// A call of the library takes 11 kB.
	if most := uint64(25*len(content) + 320*maxTree + 12_000*got.counted); allocated > most {
		t.Errorf("%d bytes are allocated for %d, want at most %d", allocated, len(content), most)
	}
	if n := len(got.rejected); n > maxProblems {
		t.Errorf("%d problems are reported, want at most %d", n, maxProblems)
	}
	words := 0
	for _, b := range got.rejected {
		words += len(b.err.Error())
	}
	if words > 100_000 {
		t.Errorf("%d bytes of errors", words)
	}
	return allocated
}

// TestLargeTextBeyondASCII loads a file of several megabytes in which each object
// contains text that is not ASCII, as kubectl and people write it. All objects are in
// force.
func TestLargeTextBeyondASCII(t *testing.T) {
	const each = "  annotations:\n    note: für 網路 😀\n    emoji: \"\\U0001F600 \\u00e9\"\n    more: 'größer: ja'\n    text: |\n      Zwölf\n      \"日\"\n"
	size := nightly(1 << 20)
	var text strings.Builder
	n := 0
	for ; text.Len() < size; n++ {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: s%d\n%s", n, each)
	}
	got := (&decoder{noted: map[string]bool{}}).decode([]byte(text.String()))
	if len(got.objects) != n || got.problems() > 0 {
		t.Fatalf("%d objects of %d, problems %v", len(got.objects), n, got.rejected)
	}
	s := got.objects[n-1].value.(*corev1.Service)
	if want := "😀 é"; s.Annotations["emoji"] != want || s.Annotations["text"] != "Zwölf\n\"日\"\n" {
		t.Errorf("annotations = %q", s.Annotations)
	}
}

// TestProblemLimit has a file with 50 invalid objects: 20 are described, and 30 more are
// counted. Their previous versions remain.
func TestProblemLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.yaml")
	state := func(field string) {
		var text strings.Builder
		for i := range 50 {
			text.WriteString("---\n" + strings.Replace(serviceYAML(fmt.Sprintf("s%d", i), "10.96.0.1"), "clusterIP", field, 1))
		}
		write(t, path, text.String())
	}
	l := newManifestStore(&Manifests{Paths: []string{path}})
	refresh := func() []problem {
		l.refresh(&recorder{}, nil)
		return l.problems
	}
	state("clusterIP")
	if p := refresh(); len(p) != 0 || len(l.delivered) != 50 {
		t.Fatalf("%d objects, problems %v; want 50 and none", len(l.delivered), p)
	}
	state("clusterIp")
	p := refresh()
	if len(p) != maxProblems+1 || !strings.Contains(p[maxProblems].err.Error(), "30 more objects cannot be used") {
		t.Errorf("problems = %v, want %d and a count of 30", p, maxProblems)
	}
	if len(l.delivered) != 50 {
		t.Errorf("%d objects are left, want the last good versions of 50", len(l.delivered))
	}
}
