// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/track"
)

// ServiceChecks returns the checks of what Services and EndpointSlices say, and of the packets to
// Services. survey returns what both look at; nil means that it is not known, and why.
func ServiceChecks(survey func(context.Context) (x *explain.Survey, why string, err error)) []Check {
	look := func(look func(*explain.Survey) Seen) func(context.Context) (Seen, error) {
		return func(ctx context.Context) (Seen, error) {
			x, why, err := survey(ctx)
			if err != nil || x == nil {
				return NothingToSee("%s", why), err
			}
			return look(x), nil
		}
	}
	return []Check{{"objects of Services", look(objectsSeen)}, {"packets to Services", look(packetsSeen)}}
}

// mistakes is what to do about each code of a problem.
var mistakes = map[track.Code]string{
	track.PortMismatch:        "give the port of the Service and that of the EndpointSlice one name; where the Service has a selector, targetPort names a port that the containers must have",
	track.ProtocolMismatch:    "give the port of the Service and that of the EndpointSlice one protocol",
	track.FamilyMismatch:      "give the Service an address of the family of its endpoints by ipFamilies, or the EndpointSlice endpoints of the Service's family",
	track.ClusterIPEndpoint:   "list the addresses of pods, or take a Service of type ExternalName",
	track.AddressClaimed:      "give each of the Services an address and port of its own",
	track.SliceWithoutService: "set the label kubernetes.io/service-name of the EndpointSlice to the name of a Service in its namespace, or delete it",
	track.NoSlice:             "see whether kube-controller-manager runs; beside --manifests nobody applies selectors, so write an EndpointSlice",
}

// mostProblems is how many problems of one kind a Finding has.
const mostProblems = 3

// objectsSeen returns a Finding for each kind of problem. What has no code is one kind.
func objectsSeen(x *explain.Survey) Seen {
	seen := Seen{Note: counted(x.Services)}
	if x.Empty > 0 {
		seen.Note += fmt.Sprintf(", %d without a ready endpoint", x.Empty)
	}
	if x.Remote > 0 {
		seen.Note += fmt.Sprintf(", %d of policy Local without a local one", x.Remote)
	}
	kinds := map[track.Code][]string{}
	for _, p := range x.Problems {
		kinds[p.Code] = append(kinds[p.Code], strings.TrimSuffix(fmt.Sprintf("service %s: %s: %s", p.Service, p.Field, p.Message), "."))
	}
	for code, all := range kinds {
		f := Finding{Topic: Topic(code), What: strings.Join(all[:min(mostProblems, len(all))], "; "), Advice: mistakes[code]}
		if n := len(all) - mostProblems; n > 0 {
			f.What += fmt.Sprintf("; and %d more, which kube-proxy status --failing lists", n)
		}
		if code == "" {
			f.Topic, f.Advice = ServiceProblem, "correct the fields; kube-proxy status NAMESPACE/NAME shows what of the Service works"
		}
		seen.Findings = append(seen.Findings, f)
	}
	return seen
}

func counted(services int) string {
	if services == 1 {
		return "1 Service"
	}
	return fmt.Sprintf("%d Services", services)
}

// packetsSeen returns a Finding for each cause that keeps packets from Services.
func packetsSeen(x *explain.Survey) Seen {
	if x.Connections == 0 {
		return NothingToSee("none was followed: %s", strings.Join(x.Lacking, "; "))
	}
	seen := Seen{Note: fmt.Sprintf("to %s from %s", counted(x.Followed), strings.Join(x.Clients, ", "))}
	if left := x.Services - x.Followed; left > 0 {
		seen.Note += fmt.Sprintf("; the other %d were not followed, for want of time", left)
	}
	if x.Doubtful > 0 {
		seen.Note += fmt.Sprintf("; for %d not all can be told", x.Doubtful)
	}
	seen.Note = strings.Join(append([]string{seen.Note}, x.Lacking...), "; ")
	for _, c := range x.Causes {
		which := fmt.Sprintf("%d of %s (%s)", c.Affected, counted(x.Followed), named(c))
		f := Finding{
			Topic: ServiceTraffic, Subject: c.What, Fix: c.Fix,
			What:   fmt.Sprintf(c.What, which) + ", from " + strings.Join(c.Clients, ", "),
			Advice: "one connection of them: " + c.Command,
		}
		if c.Look != "" {
			f.Advice = "look: " + c.Look + "; " + f.Advice
		} else if c.Fix == "" { // rules of the mode are not as they should be
			f.Follows = []Topic{ProxyAbsent, ProxySilent}
		}
		if c.Affected < x.Followed {
			f.Severity = Risk
		}
		seen.Findings = append(seen.Findings, f)
	}
	if all := x.Unanswered; len(all) > 0 {
		var which []string
		for _, u := range all[:min(mostUnanswered, len(all))] {
			which = append(which, fmt.Sprintf("%d to %s", u.Connections, u.Service))
		}
		f := Finding{
			Topic: Unanswered, What: "connections wait for a first answer for a second or more: " + strings.Join(which, ", "),
			Advice:  all[0].Command + " dials the endpoints",
			Follows: []Topic{ServiceTraffic, ForwardPolicy, ReversePathFilter, ConntrackFull, Setting},
		}
		if n := len(all) - mostUnanswered; n > 0 {
			f.What += fmt.Sprintf(", and to %s more", counted(n))
		}
		seen.Findings = append(seen.Findings, f)
	}
	return seen
}

// mostUnanswered is how many Services a Finding names.
const mostUnanswered = 10

// named names the first Services of a cause.
func named(c explain.Cause) string {
	text := strings.Join(c.Services, ", ")
	if c.Affected > len(c.Services) {
		text += ", ..."
	}
	return text
}

// seenIn makes what was seen of packets to Services follow from the Findings that name its cause.
func seenIn(all []Finding) {
	for i := range all {
		f := &all[i]
		if f.Topic != ServiceTraffic {
			continue
		}
		for _, c := range all {
			subject := strings.TrimSuffix(c.Subject, " of nftables")
			if c.Topic != ServiceTraffic && (c.Fix != "" && c.Fix == f.Fix || len(subject) > 8 && strings.Contains(f.What, subject)) {
				f.Follows = append(f.Follows, c.Topic)
			}
		}
	}
}
