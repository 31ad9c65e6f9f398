// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"strings"

	"kubeproxy/common/doctor"
)

// right is what the account needs.
type right struct {
	group, resource, verb string
	// needed is whether nothing works without it.
	needed bool
}

func (r right) String() string { return r.verb + " " + r.resource }

// rights are those of the ClusterRole in build/deploy/linux/objects.yaml.
var rights = []right{
	{"", "services", "list", true},
	{"", "services", "watch", true},
	{"discovery.k8s.io", "endpointslices", "list", true},
	{"discovery.k8s.io", "endpointslices", "watch", true},
	{"", "nodes", "list", false},
	{"", "nodes", "watch", false},
	{"networking.k8s.io", "servicecidrs", "list", false},
	{"networking.k8s.io", "servicecidrs", "watch", false},
	{"", "events", "create", false},
	{"", "events", "patch", false},
}

// rights checks that the account may do what the proxy does.
func (s *Server) rights(ctx context.Context) (doctor.Seen, error) {
	if absent := s.absent(ctx); absent != nil {
		return *absent, nil
	}
	c := s.connect(ctx)
	var missing []right
	for _, r := range rights {
		allowed, err := c.client.may(ctx, r)
		if err != nil {
			return doctor.Seen{}, fmt.Errorf("ask whether the account may %s: %w", r, err)
		}
		if !allowed {
			missing = append(missing, r)
		}
	}
	seen := doctor.Seen{Note: fmt.Sprintf("%d of them", len(rights))}
	if len(missing) > 0 {
		seen.Findings = []doctor.Finding{rightsFinding(missing, c.user)}
	}
	return seen, nil
}

func rightsFinding(missing []right, user string) doctor.Finding {
	f := doctor.Finding{Topic: doctor.MissingRights, Severity: doctor.Risk}
	var names []string
	for _, r := range missing {
		names = append(names, r.String())
		if r.needed {
			f.Severity = doctor.Blocks
		}
	}
	f.What = "the account may not " + strings.Join(names, ", ")
	f.Advice = "run it where kubectl has the rights of an administrator; the ClusterRole in build/deploy/linux/objects.yaml has all rights, those on servicecidrs and on events too, which older clusters do not give"
	const command = "kubectl create clusterrolebinding kube-proxy-node-proxier --clusterrole=system:node-proxier "
	account, isAccount := strings.CutPrefix(user, "system:serviceaccount:")
	switch {
	case isAccount:
		f.Fix = command + "--serviceaccount=" + account
	case user != "":
		f.Fix = command + "--user=" + user
	}
	return f
}

// may asks whether the account has a right in every namespace.
func (c *client) may(ctx context.Context, r right) (bool, error) {
	type attributes struct {
		Group    string `json:"group,omitempty"`
		Resource string `json:"resource"`
		Verb     string `json:"verb"`
	}
	body := map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": attributes{r.group, r.resource, r.verb}},
	}
	var answer struct{ Status struct{ Allowed bool } }
	_, err := c.call(ctx, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, &answer)
	return answer.Status.Allowed, err
}
