// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"kubeproxy/common/printable"
)

// decoder turns the content of files into objects.
type decoder struct {
	note  func(string)
	noted map[string]bool
}

// decoded is the content of one file. If a document is unparsable, the rest of the file
// cannot be trusted. A rejected object affects only itself. Of both, only the first few
// are described. Of further rejected objects only the names are kept.
type decoded struct {
	objects       []object
	rejected      []rejection
	unparsable    []rejection
	more          int   // further problems
	undescribed   []key // of the bad objects among those
	rejectedCount int   // bad objects
	counted       int   // objects of any kind
	costs         costs
}

// rejection is an object or a whole document that cannot be used. Its key is zero if it
// is unknown which object it is.
type rejection struct {
	key   key
	where string // in the file
	err   error
}

// name identifies the object within a file.
func (b rejection) name() string {
	if b.key.kind == "" {
		return b.where
	}
	return b.key.String()
}

// decode returns the content of a file.
func (d *decoder) decode(content []byte) *decoded {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	if startsAsJSON(content) {
		out := newDecoded(content)
		if err := jsonDocuments(content, func(doc document) bool { return d.document(doc, out) }); err == nil {
			return out
		}
	}
	out := newDecoded(content)
	yamlDocuments(content, func(doc document) bool { return d.document(doc, out) })
	return out
}

// document decodes one document into out. It returns false if the rest of the file is to
// be ignored.
func (d *decoder) document(doc document, out *decoded) bool {
	text, strict, err := doc.toJSON(&out.costs)
	switch {
	case err != nil:
		out.rejectDocument(rejection{where: doc.position(), err: doc.wrap(err)})
	case string(text) != "null": // comments only
		d.object(item{doc: doc, text: text, strict: strict}, out)
	}
	return !out.tooManyErrors()
}

// toJSON returns the document as JSON. strict is an error that only a strict parser
// reports, such as a duplicate key.
func (d document) toJSON(c *costs) (text []byte, strict, err error) {
	if d.json {
		return d.text, nil, nil
	}
	if text, err := plainYAML(d.text, c.plain); err == nil {
		c.plain = text
		return text, nil, nil
	}
	if err := c.chargeTree(len(d.text) + treeSetup); err != nil {
		return nil, nil, err
	}
	if err := checkAliases(d.text); err != nil {
		return nil, nil, err
	}
	text, strict = yaml.YAMLToJSONStrict(d.text)
	if strict == nil {
		return text, nil, nil
	}
	text, err = yaml.YAMLToJSON(d.text)
	return text, d.absolute(strict), d.absolute(err)
}

// absolute converts the line numbers in a YAML error to those of the file.
func (d document) absolute(err error) error {
	if err == nil {
		return nil
	}
	text := regexp.MustCompile(`\bline (\d+):`).ReplaceAllStringFunc(err.Error(), func(s string) string {
		n, _ := strconv.Atoi(strings.Trim(s, "line :"))
		return fmt.Sprintf("line %d:", n+d.line-1)
	})
	for _, prefix := range []string{"error converting YAML to JSON: ", "yaml: ", "unmarshal errors:\n  "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return errors.New(strings.ReplaceAll(text, "\n  ", "; "))
}

// item is an object to decode, alone or in a List.
type item struct {
	doc    document
	text   []byte
	strict error  // problem of the document although it can be parsed
	kind   string // default if the object has none
	api    string // likewise
	within string // position in a List, "" outside of one
	depth  int
}

// header holds the fields that identify an object.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// reject returns a rejection of the whole item.
func (i item) reject(err error) rejection {
	return rejection{where: strings.TrimSuffix(i.doc.position()+": "+i.within, ": "), err: i.wrap("", err)}
}

func (i item) wrap(what string, err error) error {
	if i.within != "" {
		what = strings.TrimSuffix(i.within+": "+what, ": ")
	}
	if what != "" {
		err = fmt.Errorf("%s: %w", what, err)
	}
	return i.doc.wrap(err)
}

// namespaceDefault is the namespace of objects without one.
const namespaceDefault = metav1.NamespaceDefault

// object decodes one item into out.
func (d *decoder) object(i item, out *decoded) {
	out.countObject()
	var h header
	if err := kjson.UnmarshalCaseSensitivePreserveInts(i.text, &h); err != nil {
		out.rejectObject(key{}, func() rejection { return i.reject(typeError(i.text, &header{}, err)) })
		return
	}
	if h.Kind == "" && h.APIVersion == "" {
		h.Kind, h.APIVersion = i.kind, i.api
	}
	if h.Kind == "" || h.APIVersion == "" {
		out.rejectObject(key{}, func() rejection {
			return i.reject(errors.New("an object without apiVersion or kind; want such as apiVersion: v1, kind: Service"))
		})
		return
	}
	name := h.APIVersion + " " + h.Kind
	if of, ok := listOf(name); ok {
		d.list(i, of, out)
		return
	}
	value, namespaced := newObject(name)
	if value == nil {
		d.ignore(name)
		return
	}
	k := key{kind: h.Kind}
	k.name.Name = h.Metadata.Name
	if namespaced {
		k.name.Namespace = h.Metadata.Namespace
		if k.name.Namespace == "" {
			k.name.Namespace = namespaceDefault
		}
	}
	if err := i.fill(value, k, out); err != nil {
		out.rejectObject(k, func() rejection { return rejection{key: k, err: i.wrap(k.String(), err)} })
		return
	}
	out.objects = append(out.objects, object{k, value})
}

// newObject returns an empty object of one of the kinds that matter, or nil for other
// kinds.
func newObject(name string) (value metav1.Object, namespaced bool) {
	switch name {
	case "v1 Service":
		return &corev1.Service{}, true
	case "v1 Endpoints":
		return &endpoints{}, true
	case "v1 Node":
		return &corev1.Node{}, false
	case "discovery.k8s.io/v1 EndpointSlice":
		return &discoveryv1.EndpointSlice{}, true
	case "networking.k8s.io/v1 ServiceCIDR":
		return &networkingv1.ServiceCIDR{}, false
	}
	return nil, false
}

// listOf returns the kind of the items of a list, for items without a kind.
func listOf(name string) (of [2]string, ok bool) {
	if name == "v1 List" {
		return of, true
	}
	item, ok := strings.CutSuffix(name, "List")
	if v, _ := newObject(item); !ok || v == nil {
		return of, false
	}
	api, kind, _ := strings.Cut(item, " ")
	return [2]string{api, kind}, true
}

// maxDepth bounds Lists within Lists.
const maxDepth = 4

func (d *decoder) list(i item, of [2]string, out *decoded) {
	if i.strict != nil {
		out.rejectObject(key{}, func() rejection { return i.reject(i.strict) })
	}
	var l struct {
		Items []json.RawMessage `json:"items"`
	}
	if i.depth == maxDepth {
		out.rejectObject(key{}, func() rejection { return i.reject(fmt.Errorf("more than %d Lists within each other", maxDepth)) })
		return
	}
	n := -1
	err := eachItem(i.text, func(text json.RawMessage) bool {
		n++
		if string(text) == "null" {
			return true
		}
		within := fmt.Sprintf("items[%d]", n)
		if i.within != "" {
			within = i.within + "." + within
		}
		d.object(item{doc: i.doc, text: text, api: of[0], kind: of[1], within: within, depth: i.depth + 1}, out)
		return !out.tooManyErrors()
	})
	if err != nil {
		out.rejectObject(key{}, func() rejection { return i.reject(typeError(i.text, &l, err)) })
	}
}

func (d *decoder) ignore(name string) {
	d.noteOnce(fmt.Sprintf("objects of kind %.200s are ignored; a manifest's Services, EndpointSlices, Endpoints, Nodes and ServiceCIDRs count", printable.Text(name)))
}

// noteOnce notes something that may be intended, once.
func (d *decoder) noteOnce(text string) {
	if d.note != nil && !d.noted[text] {
		d.note(text)
	}
	d.noted[text] = true
}

// fill decodes the item into value and checks what identifies it.
func (i item) fill(value metav1.Object, k key, out *decoded) error {
	var errs []error
	if err := out.costs.dense(i.text); err != nil {
		return err
	}
	if i.strict != nil {
		errs = append(errs, i.strict)
	}
	strict, err := kjson.UnmarshalStrict(i.text, value)
	if err != nil {
		return joinLine(append(errs, typeError(i.text, value, err)))
	}
	errs = append(errs, i.explainAll(value, strict, out)...)
	value.SetNamespace(k.name.Namespace)
	value.SetManagedFields(nil)
	compact(value)
	return joinLine(append(errs, checkNames(value)...))
}

// isPlainName reports whether s is valid as a name of any kind. Most names are, and this
// check takes a hundredth of the time of the library's regular expressions.
func isPlainName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return len(s) <= 63
}

// checkNames checks the names that are used in rules and logs.
func checkNames(o metav1.Object) []error {
	var errs []error
	check := func(field, value, want string, faults func(string) []string) {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s is missing", field))
		} else if !isPlainName(value) && len(faults(value)) > 0 {
			errs = append(errs, fmt.Errorf("%s: %.80q is no name; want %s", field, value, want))
		}
	}
	const label = "at most 63 lower-case letters, digits and dashes"
	name := o.GetName()
	if _, ok := o.(*corev1.Node); ok {
		name = strings.ToLower(name) // some systems report their names in upper case
	}
	check("metadata.name", name, "at most 253 lower-case letters, digits, dashes and dots", validation.IsDNS1123Subdomain)
	if ns := o.GetNamespace(); ns != "" {
		check("metadata.namespace", ns, label, validation.IsDNS1123Label)
	}
	if s, ok := o.(*corev1.Service); ok {
		for i, p := range s.Spec.Ports {
			if p.Name != "" {
				check(fmt.Sprintf("spec.ports[%d].name", i), p.Name, label, validation.IsDNS1123Label)
			}
		}
	}
	return errs
}
