// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
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
	path  string // of the file
	note  func(string)
	noted map[string]bool
}

// decoded is the content of one file. A rejected object affects only itself. Only the
// first few are described. Of further ones only the names are kept.
type decoded struct {
	objects       []object
	rejected      []rejection
	undescribed   []key // of further rejected objects
	rejectedCount int
	// unnamed is how many rejected objects have no known name, and may be any of those missing.
	unnamed int
	tooMuch error // why the rest of the file was not read
	counted int   // objects of any kind
	fields  int   // notes about unknown fields
	costs   costs
}

// rejection is an object or document that cannot be used, with a zero key if unknown.
type rejection struct {
	key   key
	where string // in the file
	err   error
}

// name identifies the object within a file.
func (r rejection) name() string {
	if r.key.kind == "" {
		return r.where
	}
	return r.key.String()
}

func (d *decoder) decode(content []byte) *decoded {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	if bytes.IndexByte(content, '\r') >= 0 {
		content = bytes.ReplaceAll(content, []byte("\r\n"), []byte("\n"))
	}
	out := &decoded{}
	documents(content, func(doc document) bool {
		d.document(doc, out)
		return out.tooMuch == nil
	})
	return out
}

// document decodes one document into out, which may be several objects of JSON.
func (d *decoder) document(doc document, out *decoded) {
	if lead := spaces(doc.text); doc.text[lead] != '{' || !bytes.HasPrefix(bytes.TrimLeft(doc.text[lead+1:], " \t\n"), []byte(`"`)) {
		d.item(item{doc: doc}, out)
		return
	}
	all, err := doc.jsonObjects()
	if valid := func(o document) bool { return json.Valid(o.text) }; err != nil || treeSize(doc.text) <= maxTree && !every(all, valid) {
		if text, _, err := doc.toJSON(); err == nil { // flow style
			d.item(item{doc: doc, text: text}, out)
			return
		}
	}
	for _, o := range all {
		if d.item(item{doc: o, text: o.text}, out); out.tooMuch != nil {
			return
		}
	}
	if err != nil {
		out.reject(key{}, func() rejection { return item{doc: doc}.reject(err) })
	}
}

func every[T any](all []T, holds func(T) bool) bool {
	return !slices.ContainsFunc(all, func(v T) bool { return !holds(v) })
}

// jsonObjects splits d into objects. With an error, it returns those before it.
func (d document) jsonObjects() (all []document, err error) {
	line, at := d.line, 0
	for i := spaces(d.text); i < len(d.text); i += spaces(d.text[i:]) {
		line += bytes.Count(d.text[at:i], []byte("\n"))
		at = i
		n, err := jsonEnd(d.text[i:])
		if err != nil || d.text[i] != '{' {
			return all, fmt.Errorf("line %d: %w", line, cmp.Or(err, errors.New("the JSON has something else than an object")))
		}
		all = append(all, document{line: line, text: d.text[i : i+n], json: true})
		i += n
	}
	return all, nil
}

// toJSON returns the document as JSON. strict is an error that only a strict parser
// reports, such as a duplicate key.
func (d document) toJSON() (text []byte, strict, err error) {
	if size := treeSize(d.text); size > maxTree {
		return nil, nil, fmt.Errorf("it has %d bytes of YAML with so many values that it would take %d MB to read; want at most %d MB, or JSON", len(d.text), size>>20, maxTree>>20)
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
	text, _, _ = strings.Cut(text, ": map[interface {}]") // Go's view of {{x}}
	if bytes.Contains(d.text, []byte("{{")) {
		text += "; it has {{, as templates have: want what helm template prints"
	}
	return errors.New(strings.ReplaceAll(text, "\n  ", "; "))
}

// item is an object to decode, alone or in a List.
type item struct {
	doc    document
	text   []byte // JSON, nil if doc is not converted yet
	strict error  // problem of the document although it can be parsed
	kind   string // default if the object has none
	api    string // likewise
	depth  int
	header header
	key    key
}

// header holds the fields that identify an object.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
	} `json:"metadata"`
}

// key returns the key of an object of one of the kinds that matter.
func (h header) key() key {
	value, namespaced := newObject(h.APIVersion, h.Kind)
	if value == nil || h.Metadata.Name == "" {
		return key{}
	}
	return h.keyIn(namespaced)
}

func (h header) keyIn(namespaced bool) key {
	k := key{kind: h.Kind}
	k.name.Name = h.Metadata.Name
	if namespaced {
		k.name.Namespace = cmp.Or(h.Metadata.Namespace, metav1.NamespaceDefault)
	}
	return k
}

// blockHeader returns the header of an object in block style, without parsing the object,
// and the items if it is a List. It returns false if the kind cannot be told so.
func (i item) blockHeader() (h header, items entry, ok bool) {
	ok = true
	read := func(all []entry, to map[string]*string) {
		for _, e := range all {
			if into := to[e.key]; into != nil {
				value, single := e.value()
				ok = ok && single && *into == "" // else it is no string, or there twice
				*into = value
			}
		}
	}
	all := entries(i.doc.text)
	read(all, map[string]*string{"apiVersion": &h.APIVersion, "kind": &h.Kind})
	told := ok
	for _, e := range all {
		switch e.key {
		case "items":
			items = e
		case "metadata":
			read(entries(e.text), map[string]*string{"name": &h.Metadata.Name, "namespace": &h.Metadata.Namespace})
		}
	}
	ok = told
	if h.Kind == "" && h.APIVersion == "" {
		h.Kind, h.APIVersion = i.kind, i.api
	}
	return h, items, ok && h.Kind != "" && h.APIVersion != ""
}

// jsonHeader returns the header of an object in JSON.
func jsonHeader(text []byte) (h header, err error) {
	whole := func(err error) error { return typeError(text, &header{}, err) }
	if text[0] != '{' {
		return h, whole(errors.New("want an object"))
	}
	fields := func(text []byte, to map[string]*string, inside func(string, []byte)) {
		serr := jsonItems(text, func(name string, value []byte, _ int) bool {
			if into := to[name]; into != nil && err == nil {
				err = json.Unmarshal(value, into)
			} else if inside != nil {
				inside(name, value)
			}
			return h.Kind == "" || h.APIVersion == "" || inside == nil || h.Metadata.Name == ""
		})
		err = cmp.Or(err, serr)
	}
	fields(text, map[string]*string{"apiVersion": &h.APIVersion, "kind": &h.Kind}, func(name string, value []byte) {
		if m := &h.Metadata; name == "metadata" && value[0] == '{' {
			fields(value, map[string]*string{"name": &m.Name, "namespace": &m.Namespace, "uid": &m.UID}, nil)
		}
	})
	if err != nil {
		return h, whole(err)
	}
	return h, nil
}

func (i item) reject(err error) rejection {
	return rejection{where: i.doc.position(), err: i.doc.wrap(err)}
}

func (d *decoder) item(i item, out *decoded) {
	out.countObject()
	if i.text == nil {
		h, items, ok := i.blockHeader()
		if ok && d.blockItem(i, h, items, out) {
			return
		}
		text, strict, err := i.doc.toJSON()
		if err != nil {
			out.reject(h.key(), func() rejection { return i.rejectNamed(h.key(), err) })
			return
		}
		if i.text, i.strict = text, strict; string(text) == "null" {
			return // comments only
		}
	}
	d.object(i, out)
}

func (i item) rejectNamed(k key, err error) rejection {
	if k.kind == "" {
		return i.reject(err)
	}
	return rejection{key: k, err: i.doc.wrap(fmt.Errorf("%s: %w", k, err))}
}

// blockItem decodes a List item by item, and ignores objects of other kinds, whatever
// they contain. It returns false if the item must be converted first.
func (d *decoder) blockItem(i item, h header, items entry, out *decoded) bool {
	if of, list := listOf(h); list {
		if len(items.rest) > 0 || i.depth == maxDepth || hasAliases(i.doc.text) {
			return false
		}
		n := -1
		return blockItems(items.text, func(text []byte, line int) bool {
			n++
			doc := document{line: i.doc.line + items.line + 1 + line, text: text, within: i.doc.inside(n)}
			d.item(item{doc: doc, api: of[0], kind: of[1], depth: i.depth + 1}, out)
			return out.tooMuch == nil
		})
	}
	value, _ := newObject(h.APIVersion, h.Kind)
	if value != nil || misnamed(h) != "" {
		return false
	}
	d.ignore(h)
	return true
}

// inside returns the position of item n of a List.
func (d document) inside(n int) string {
	within := fmt.Sprintf("items[%d]", n)
	if d.within != "" {
		within = d.within + "." + within
	}
	return within
}

// object decodes one item in JSON into out.
func (d *decoder) object(i item, out *decoded) {
	h, err := jsonHeader(i.text)
	if err != nil {
		out.reject(h.key(), func() rejection { return i.rejectNamed(h.key(), err) })
		return
	}
	if h.Kind == "" && h.APIVersion == "" {
		h.Kind, h.APIVersion = i.kind, i.api
	}
	if h.Kind == "" || h.APIVersion == "" {
		out.reject(key{}, func() rejection {
			return i.reject(errors.New("an object without apiVersion or kind; want such as apiVersion: v1, kind: Service"))
		})
		return
	}
	if of, ok := listOf(h); ok {
		d.list(i, of, out)
		return
	}
	value, namespaced := newObject(h.APIVersion, h.Kind)
	if want := misnamed(h); value == nil && want != "" {
		out.reject(key{}, func() rejection {
			return i.reject(fmt.Errorf("apiVersion: %.80s, kind: %.80s is no kind of Kubernetes; want %s", printable.Text(h.APIVersion), printable.Text(h.Kind), want))
		})
		return
	}
	if value == nil {
		d.ignore(h)
		return
	}
	if group, version, found := strings.Cut(h.APIVersion, "/"); found && version != "v1" {
		name := printable.Text(h.APIVersion + " " + h.Kind)
		d.noteOnce(name, "objects of kind "+name+" are read as "+group+"/v1, as far as that is known")
	}
	i.header, i.key = h, h.keyIn(namespaced)
	if err := d.fill(i, value, out); err != nil {
		out.reject(i.key, func() rejection { return i.rejectNamed(i.key, err) })
		return
	}
	out.objects = append(out.objects, object{i.key, value})
}

// groups has the API group of each kind that matters.
var groups = map[string]string{"Service": "", "Endpoints": "", "Node": "", "EndpointSlice": "discovery.k8s.io", "ServiceCIDR": "networking.k8s.io"}

// newObject returns an empty object of one of the kinds that matter, or nil for other
// kinds. Older and newer versions of an API outside of the core group are read as v1.
func newObject(api, kind string) (value metav1.Object, namespaced bool) {
	group, version, found := strings.Cut(api, "/")
	if !found {
		group, version = "", api
	}
	if of, known := groups[kind]; !known || group != of || group == "" && version != "v1" {
		return nil, false
	}
	switch kind {
	case "Service":
		return &corev1.Service{}, true
	case "Endpoints":
		return &endpoints{}, true
	case "Node":
		return &corev1.Node{}, false
	case "EndpointSlice":
		return &discoveryv1.EndpointSlice{}, true
	}
	return &networkingv1.ServiceCIDR{}, false
}

// misnamed returns which kind of Kubernetes h may mean although it names another one, or
// "". Other projects have kinds with the same names.
func misnamed(h header) string {
	group, _, found := strings.Cut(h.APIVersion, "/")
	if found && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") {
		return ""
	}
	for kind, group := range groups {
		if strings.EqualFold(strings.TrimRight(h.Kind, "sS"), strings.TrimSuffix(kind, "s")) {
			return "apiVersion: " + strings.TrimPrefix(group+"/v1", "/") + ", kind: " + kind
		}
	}
	return ""
}

// listOf returns the apiVersion and kind of the items of a list, for items without.
func listOf(h header) (of [2]string, ok bool) {
	if h.APIVersion == "v1" && h.Kind == "List" {
		return of, true
	}
	kind, ok := strings.CutSuffix(h.Kind, "List")
	if v, _ := newObject(h.APIVersion, kind); !ok || v == nil {
		return of, false
	}
	return [2]string{h.APIVersion, kind}, true
}

// maxDepth bounds Lists within Lists.
const maxDepth = 4

// list decodes the items of a List in JSON.
func (d *decoder) list(i item, of [2]string, out *decoded) {
	reject := func(err error) { out.reject(key{}, func() rejection { return i.reject(err) }) }
	if i.strict != nil {
		reject(i.strict)
	}
	if i.depth == maxDepth {
		reject(fmt.Errorf("more than %d Lists within each other", maxDepth))
		return
	}
	items, at := []byte("null"), 0
	err := jsonItems(i.text, func(name string, value []byte, start int) bool {
		if name == "items" {
			items, at = value, start
		}
		return true
	})
	switch {
	case err != nil:
		reject(err)
		return
	case string(items) == "null":
		return
	case items[0] != '[':
		reject(errors.New("items: want a list"))
		return
	}
	n, line, counted := -1, i.doc.line, 0
	err = jsonItems(items, func(_ string, text []byte, start int) bool {
		n++
		doc := i.doc
		if doc.within = i.doc.inside(n); i.doc.json {
			line += bytes.Count(i.text[counted:at+start], []byte("\n"))
			counted = at + start
			doc.line, doc.text = line, text
		}
		if string(text) != "null" {
			d.item(item{doc: doc, text: text, api: of[0], kind: of[1], depth: i.depth + 1}, out)
		}
		return out.tooMuch == nil
	})
	if err != nil {
		reject(fmt.Errorf("after items[%d]: %w", n, err))
	}
}

func (d *decoder) ignore(h header) {
	name := printable.Text(fmt.Sprintf("%.200s", h.APIVersion+" "+h.Kind))
	d.noteOnce(name, "objects of kind "+name+" are ignored; a manifest's Services, EndpointSlices, Endpoints, Nodes and ServiceCIDRs count")
}

// noteOnce notes something that may be intended, once for each key.
func (d *decoder) noteOnce(key, text string) {
	if d.note != nil && !d.noted[key] {
		d.note(text)
	}
	d.noted[key] = true
}

// fill decodes the item into value and checks what identifies it.
func (d *decoder) fill(i item, value metav1.Object, out *decoded) error {
	if i.doc.json {
		i.text = withoutManagedFields(i.text, &out.costs)
	}
	if err := out.costs.dense(i.text); err != nil {
		return err
	}
	var errs []error
	if i.strict != nil {
		errs = append(errs, i.strict)
	}
	strict, err := kjson.UnmarshalStrict(i.text, value)
	if err != nil {
		return joinLine(append(errs, typeError(i.text, value, err)))
	}
	strict = d.tolerate(i, value, strict, out)
	errs = append(errs, i.explainAll(value, strict, out)...)
	value.SetNamespace(i.key.name.Namespace)
	value.SetManagedFields(nil)
	delete(value.GetAnnotations(), corev1.LastAppliedConfigAnnotation) // it may be half of the object
	compact(value)
	if s, is := value.(*discoveryv1.EndpointSlice); is && !strings.HasSuffix(i.header.APIVersion, "/v1") {
		readTopology(s, i.text)
	}
	return joinLine(append(errs, checkNames(value)...))
}

// withoutManagedFields returns an object in JSON without what is often half of it.
func withoutManagedFields(text []byte, c *costs) []byte {
	cut := text
	_ = jsonItems(text, func(name string, metadata []byte, at int) bool {
		if name == "metadata" && metadata[0] == '{' {
			_ = jsonItems(metadata, func(name string, value []byte, start int) bool {
				if name == "managedFields" {
					start += at
					c.cut = append(append(append(c.cut[:0], text[:start]...), "null"...), text[start+len(value):]...)
					cut = c.cut
				}
				return true
			})
		}
		return name != "metadata"
	})
	return cut
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

//lint:file-ignore SA1019 People still write Endpoints, so they are read here.

// endpoints is the older API for the endpoints of a Service.
type endpoints = corev1.Endpoints

// slicesOf mirrors Endpoints like the EndpointSliceMirroring controller: one slice for
// each subset and family. The names contain a slash, so they differ from those of all
// real slices. See
// https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/.
func slicesOf(e *endpoints) []*discoveryv1.EndpointSlice {
	if e.Labels[discoveryv1.LabelSkipMirror] == "true" {
		return nil
	}
	var all []*discoveryv1.EndpointSlice
	for i := range e.Subsets {
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			s := subsetSlice(e, &e.Subsets[i], family)
			if len(s.Endpoints) > 0 {
				s.Name = e.Name + "/" + strconv.Itoa(i) + "/" + string(family)
				all = append(all, s)
			}
		}
	}
	return all
}

func subsetSlice(e *endpoints, from *corev1.EndpointSubset, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: family}
	s.Namespace = e.Namespace
	s.Labels = map[string]string{discoveryv1.LabelServiceName: e.Name}
	if v, ok := e.Labels[corev1.IsHeadlessService]; ok {
		s.Labels[corev1.IsHeadlessService] = v
	}
	for _, p := range from.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
		if p.Protocol == "" {
			s.Ports[len(s.Ports)-1].Protocol = nil
		}
	}
	add := func(addrs []corev1.EndpointAddress, ready bool) {
		for _, a := range addrs {
			if addressType(a.IP) == family {
				s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
					Addresses:  []string{a.IP},
					Conditions: discoveryv1.EndpointConditions{Ready: &ready},
					NodeName:   a.NodeName,
				})
			}
		}
	}
	add(from.Addresses, true)
	add(from.NotReadyAddresses, false)
	return s
}

// addressType only looks at the notation. The sink rejects what is not an address.
func addressType(ip string) discoveryv1.AddressType {
	if strings.Contains(ip, ":") {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

// retired are fields of older versions of Kubernetes without a meaning today. portalIP and
// deprecatedPublicIPs came before clusterIP and externalIPs.
// https://kubernetes.io/docs/reference/using-api/deprecation-guide/.
var retired = map[string]bool{"spec.ipFamily": true, "spec.topologyKeys": true, "metadata.clusterName": true, "metadata.initializers": true, "spec.portalIP": true, "spec.deprecatedPublicIPs": true}

var indexes = regexp.MustCompile(`\[\d+\]`)

// tolerate notes unknown fields that another version of Kubernetes may have written, as of an
// object with a UID from an API server, which has no typos, and returns the other errors.
func (d *decoder) tolerate(i item, value metav1.Object, strict []error, out *decoded) []error {
	h := i.header
	_, node := value.(*corev1.Node)
	lenient := node || h.Metadata.UID != "" || h.APIVersion != "v1" && !strings.HasSuffix(h.APIVersion, "/v1")
	var rest []error
	for _, err := range strict {
		parent, last, ok := fieldOf(err)
		field := indexes.ReplaceAllString(strings.TrimPrefix(parent+"."+last, "."), "")
		switch {
		case !ok || !strings.Contains(err.Error(), "unknown field") ||
			!lenient && !retired[field] && !strings.HasPrefix(field, "status."):
			rest = append(rest, err)
		case field == "endpoints.topology": // see readTopology
		case out.fields < maxProblems && !d.noted[h.Kind+" "+field]:
			out.fields++
			d.noteOnce(h.Kind+" "+field, fmt.Sprintf("manifest %s: %s: %s: the field %s, unknown to this version, is ignored, here and elsewhere",
				printable.Text(d.path), i.doc.position(), i.key, printable.Text(field)))
		}
	}
	return rest
}

// readTopology sets what discovery.k8s.io/v1beta1 has in the topology of an endpoint, and the
// family of v1alpha1 in Kubernetes 1.16, whose addressType is IP.
// https://kubernetes.io/docs/reference/using-api/deprecation-guide/#endpointslice-v125,
// https://github.com/kubernetes/kubernetes/pull/84971.
func readTopology(s *discoveryv1.EndpointSlice, text []byte) {
	var old struct {
		Endpoints []struct {
			Topology map[string]string `json:"topology"`
		} `json:"endpoints"`
	}
	if json.Unmarshal(text, &old) != nil {
		return
	}
	if s.AddressType == "IP" {
		s.AddressType = addressType(firstAddress(s))
	}
	set := func(to **string, value string) {
		if *to == nil && value != "" {
			*to = &value
		}
	}
	for i := range min(len(old.Endpoints), len(s.Endpoints)) {
		topology := old.Endpoints[i].Topology
		set(&s.Endpoints[i].NodeName, topology[corev1.LabelHostname])
		set(&s.Endpoints[i].Zone, topology[corev1.LabelTopologyZone])
	}
}

// firstAddress returns an address of s, or "".
func firstAddress(s *discoveryv1.EndpointSlice) string {
	for _, e := range s.Endpoints {
		if len(e.Addresses) > 0 {
			return e.Addresses[0]
		}
	}
	return ""
}
