// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kustomize/kyaml/yaml"

	"kubeproxy/build/release/oci"
)

// localImage is the repository in the values of the chart.
const localImage = "localhost/kubeproxy"

// released matches the version of a release.
var released = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+.*)$`)

// chartVersion returns a version of the application in the form that Helm wants, see
// https://semver.org
func chartVersion(application string) string {
	if m := released.FindStringSubmatch(application); m != nil {
		return m[1]
	}
	name := regexp.MustCompile(`[^0-9A-Za-z.-]`).ReplaceAllString(application, "-")
	if regexp.MustCompile(`^0[0-9]+$`).MatchString(name) { // a number has no zero in front
		name = "g" + name
	}
	return "0.0.0-" + name
}

// Pack returns the chart as helm package does, and the name of the file. Each file has
// the time, so that the same chart gives the same bytes.
func (s *Source) Pack(created time.Time) (name string, text []byte, err error) {
	version := chartVersion(s.Version)
	repository := cmp.Or(s.Image, localImage)
	versions := strings.NewReplacer("version: 0.0.0", "version: "+version, "appVersion: dev", fmt.Sprintf("appVersion: %q", s.Version),
		localImage+"-iptables:dev", repository+"-iptables:"+s.Version, localImage+":dev", repository+":"+s.Version)
	image := strings.NewReplacer("repository: "+localImage, "repository: "+repository)
	var files []oci.File
	root := os.DirFS(s.Folder)
	err = fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(root, path)
		switch path {
		case "Chart.yaml":
			text = []byte(versions.Replace(string(text)))
			if s.Home != "" {
				text = fmt.Appendf(text, "home: %[1]q\nsources: [%[1]q]\n", s.Home)
			}
		case "values.yaml":
			text = []byte(image.Replace(string(text)))
		case "README.md":
			text = []byte(strings.ReplaceAll(string(text), `"`+localImage+`"`, `"`+cmp.Or(s.Image, localImage)+`"`))
		}
		files = append(files, oci.File{Name: "kubeproxy/" + path, Mode: 0o644, Content: text})
		return err
	})
	if err != nil {
		return "", nil, err
	}
	text, err = compressed(files, created)
	return "kubeproxy-" + version + ".tgz", text, err
}

// PackBases returns the kustomize bases as an archive.
func (s *Source) PackBases(created time.Time) ([]byte, error) {
	bases, err := s.Bases()
	if err != nil {
		return nil, err
	}
	var files []oci.File
	for path, text := range bases {
		files = append(files, oci.File{Name: "deploy/" + path, Mode: 0o644, Content: []byte(text)})
	}
	return compressed(files, created)
}

// Compressed returns a tar.gz with files, by name.
func Compressed(files map[string][]byte, created time.Time) ([]byte, error) {
	var all []oci.File
	for name, text := range files {
		all = append(all, oci.File{Name: name, Mode: 0o644, Content: text})
	}
	return compressed(all, created)
}

func compressed(files []oci.File, created time.Time) ([]byte, error) {
	text, err := oci.Archive(files, created)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}

// readmeHead is what the README of the chart has before its values.
const readmeHead = `# kubeproxy

A service proxy for Kubernetes nodes on Linux and Windows, in place of kube-proxy.

    helm install kubeproxy CHART -n kube-system --set clusterCIDR=10.244.0.0/16

In clusters that kubeadm did not make, set ` + "`apiServer`" + `. docs/install.md and docs/distributions.md say how to put
kube-proxy aside, and how to go back.

Generated from values.yaml and values.schema.json by make manifests.

## Values

The chart refuses other names, and values of another form.

| value | default | is |
|---|---|---|
`

// schema is a part of values.schema.json.
type schema struct {
	Ref         string            `json:"$ref"`
	Type        any               `json:"type"` // a name, or a list of them
	Enum        []any             `json:"enum"`
	Const       *any              `json:"const"`
	AnyOf       []schema          `json:"anyOf"`
	Description string            `json:"description"`
	Properties  map[string]schema `json:"properties"`
	Definitions map[string]schema `json:"definitions"`
}

// Readme returns the README of the chart, with a row for each value.
func (s *Source) Readme() (string, error) {
	var root schema
	text, err := os.ReadFile(filepath.Join(s.Folder, "values.schema.json"))
	if err == nil {
		err = json.Unmarshal(text, &root)
	}
	if err != nil {
		return "", err
	}
	values, err := yaml.ReadFile(filepath.Join(s.Folder, "values.yaml"))
	if err != nil {
		return "", err
	}
	r := &reference{definitions: root.Definitions}
	r.out.WriteString(readmeHead)
	r.add("", values.YNode(), root)
	return r.out.String(), nil
}

// reference writes the rows of values.
type reference struct {
	definitions map[string]schema
	out         strings.Builder
}

// add writes the rows of a mapping. One that spreads over lines has its values in rows of
// their own.
func (r *reference) add(prefix string, mapping *yaml.Node, of schema) {
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name, is := prefix+key.Value, r.resolve(of.Properties[key.Value])
		about := comment(key.HeadComment)
		if value.Kind != yaml.MappingNode || value.Style == yaml.FlowStyle {
			standard := "`" + inline(value) + "`"
			if form := r.form(is); strings.HasSuffix(form, "`") { // all that it takes
				standard += " of " + form
			}
			r.row("`"+name+"`", standard, cmp.Or(about, is.Description))
			continue
		}
		if about != "" {
			r.row("`"+name+"`", "", about)
		}
		r.add(name+".", value, is)
	}
}

func (r *reference) row(cells ...string) {
	for _, c := range cells {
		r.out.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
	}
	r.out.WriteString("|\n")
}

// resolve follows a reference to a definition.
func (r *reference) resolve(s schema) schema {
	if name, ok := strings.CutPrefix(s.Ref, "#/definitions/"); ok {
		return r.definitions[name]
	}
	return s
}

// form says which values a schema takes.
func (r *reference) form(s schema) string {
	var all []string
	for _, x := range s.Enum {
		all = append(all, quoted(x))
	}
	for _, one := range s.AnyOf {
		all = append(all, r.form(r.resolve(one)))
	}
	switch t := s.Type.(type) {
	case string:
		all = append(all, t)
	case []any:
		for _, x := range t {
			all = append(all, fmt.Sprint(x))
		}
	}
	if s.Const != nil {
		all = append(all, quoted(*s.Const))
	}
	return strings.Join(unique(all), ", ")
}

func unique(all []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(s string) bool {
		had := seen[s]
		seen[s] = true
		return had || s == ""
	})
}

func quoted(x any) string {
	text, err := json.Marshal(x)
	if err != nil {
		return fmt.Sprint(x)
	}
	return "`" + string(text) + "`"
}

// inline writes a value in one line.
func inline(n *yaml.Node) string {
	var value any
	if err := n.Decode(&value); err != nil {
		return n.Value
	}
	text, err := json.Marshal(value)
	if err != nil {
		return n.Value
	}
	return string(text)
}

// comment joins the lines of a comment.
func comment(text string) string {
	var words []string
	for line := range strings.Lines(text) {
		words = append(words, strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))...)
	}
	return strings.Join(words, " ")
}
