// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"reflect"
	"slices"
	"strings"
)

// modify changes an object. The request for a load balancer is a complete one; that for
// other kinds names what to add, to remove or to replace.
func (c *call) modify(id string) Code {
	o := c.store[c.kind].objects[id]
	if o == nil {
		return missing(c.kind)
	}
	request, ok := parse(c.request.Args[0])
	if !ok {
		return InvalidJSON
	}
	if c.by == Caller && o.by == External {
		c.warn("%s %s modified, which is foreign", c.kind, id)
	}
	switch c.kind {
	case LoadBalancer:
		return c.modifyLoadBalancer(o, request)
	case Namespace:
		modifyNamespace(o.doc, request)
	default:
		if request.text("ResourceType") == "Policy" {
			modifyPolicies(o.doc, request)
		}
	}
	return OK
}

// modifyLoadBalancer replaces the endpoints of a load balancer. No public source states
// that other fields can change, so the rest of the request is checked and then ignored. A
// caller that relies on more reads back the previous values.
func (c *call) modifyLoadBalancer(o *object, request Document) Code {
	if !c.options.Version.modify() {
		return NotImplemented
	}
	if code := c.checkLoadBalancer(request, o); code != OK {
		return code
	}
	if !c.options.Version.works() {
		return OK
	}
	c.index.remove(LoadBalancer, o.doc)
	o.doc["HostComputeEndpoints"] = request["HostComputeEndpoints"]
	c.index.add(LoadBalancer, o.doc)
	return OK
}

func modifyPolicies(d, request Document) {
	have, _ := d["Policies"].([]any)
	given, _ := request.object("Settings")["Policies"].([]any)
	switch request.text("RequestType") {
	case "Add":
		d["Policies"] = slices.Concat(have, given)
	case "Update":
		d["Policies"] = given
	case "Remove":
		d["Policies"] = slices.DeleteFunc(have, func(p any) bool {
			return slices.ContainsFunc(given, func(q any) bool { return reflect.DeepEqual(p, q) })
		})
	}
}

// modifyNamespace moves an endpoint into a namespace or out of it.
func modifyNamespace(d, request Document) {
	id := strings.ToUpper(request.object("Settings").text("EndpointId"))
	if request.text("ResourceType") != "Endpoint" || id == "" {
		return
	}
	resource := map[string]any{"Type": "Endpoint", "Data": map[string]any{"Id": id}}
	have, _ := d["Resources"].([]any)
	have = slices.DeleteFunc(have, func(r any) bool { return reflect.DeepEqual(r, any(resource)) })
	if request.text("RequestType") == "Add" {
		have = append(have, resource)
	}
	d["Resources"] = have
}
