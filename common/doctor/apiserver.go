// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"kubeproxy/common/kubeclient"
	"kubeproxy/common/printable"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
)

// Cluster has the settings of the connection to the API server, and what should be found there.
type Cluster struct {
	Client *kubeclient.Options
	Node   string
	// Addrs lists the addresses of this machine.
	Addrs func() ([]netip.Addr, error)
	Pods  Pods
	// SetClock is the command that sets the clock of this machine.
	SetClock string

	once      sync.Once
	connected connection
}

// connection is the result of the first request.
type connection struct {
	client *client
	config *rest.Config
	user   string // the user that the API server sees, empty if it does not say
	skew   time.Duration
	finds  []Finding // why there is no client
}

// maxSkew is how far clocks may differ. Certificates are made for minutes before their
// beginning, and bound tokens are renewed minutes before their end.
const maxSkew = 30 * time.Second

// Checks returns all checks.
func (s *Cluster) Checks() []Check {
	return []Check{
		{Name: "API server", Look: s.connection},
		{Name: "rights", Look: s.rights},
		{Name: "Node", Look: s.node},
	}
}

// Configured returns whether anything says how to reach an API server.
func (s *Cluster) Configured() bool {
	return s.Client.Connection.Kubeconfig != "" || s.Client.Master != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != ""
}

// Config returns the client configuration, nil if the API server cannot be used.
func (s *Cluster) Config(ctx context.Context) *rest.Config {
	if !s.Configured() {
		return nil
	}
	if c := s.connect(ctx); c.client != nil {
		return c.config
	}
	return nil
}

// absent returns why a check cannot ask anything, nil if it can.
func (s *Cluster) absent(ctx context.Context) *Seen {
	var seen Seen
	switch {
	case !s.Configured():
		seen = NothingToSee("neither --kubeconfig, --master nor --manifests is given")
	case s.connect(ctx).client == nil:
		seen = NothingToSee("the API server cannot be asked")
	default:
		return nil
	}
	return &seen
}

// connect makes the first request.
func (s *Cluster) connect(ctx context.Context) *connection {
	s.once.Do(func() { s.connected = s.try(ctx) })
	return &s.connected
}

func (s *Cluster) try(ctx context.Context) connection {
	file := cmp.Or(s.Client.Connection.Kubeconfig, "the service account of the pod")
	bad := func(what, advice string) connection {
		return connection{finds: []Finding{{Topic: Kubeconfig, Subject: file, What: what, Advice: advice}}}
	}
	config, err := s.Client.Config()
	if err != nil {
		return bad(err.Error(), "correct the file, or name another one with --kubeconfig")
	}
	if since, is := kubeclient.Expired(config, time.Now()); is {
		return bad(fmt.Sprintf("the client certificate in %s expired at %s", file, since.Format(time.RFC3339)), "renew the client certificate of the user")
	}
	c, err := newClient(config)
	if err != nil {
		return bad(err.Error(), "correct what the kubeconfig refers to")
	}
	var version struct{ GitVersion string }
	sent := time.Now()
	date, err := c.call(ctx, "/version", nil, &version)
	got := connection{client: c, config: config}
	if !date.IsZero() { // with a resolution of one second, so the middle of it is likely
		middle := sent.Add(time.Since(sent) / 2)
		got.skew = middle.Sub(date.Add(time.Second / 2))
	}
	if err == nil {
		got.user, err = c.whoAmI(ctx)
	}
	switch {
	case apierrors.IsUnauthorized(err):
		return bad(fmt.Sprintf("the API server at %s refuses the credentials: %v", config.Host, err), s.Client.Remedy(err))
	case err != nil:
		got.client = nil
		got.finds = []Finding{{Topic: APIServer, Subject: config.Host, What: fmt.Sprintf("the API server at %s cannot be asked: %v", config.Host, err),
			Advice: cmp.Or(s.Client.Remedy(err), "check the network between this node and the API server, and that no firewall drops the connection")}}
	}
	return got
}

// whoAmI returns the name of the user, empty if the API server is too old to say.
func (c *client) whoAmI(ctx context.Context) (string, error) {
	body := map[string]string{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
	var answer struct {
		Status struct {
			UserInfo struct{ Username string }
		}
	}
	_, err := c.call(ctx, "/apis/authentication.k8s.io/v1/selfsubjectreviews", body, &answer)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return "", nil
	}
	return answer.Status.UserInfo.Username, err
}

// connection checks that the API server answers, and that the clocks agree.
func (s *Cluster) connection(ctx context.Context) (Seen, error) {
	if !s.Configured() {
		return *s.absent(ctx), nil
	}
	c := s.connect(ctx)
	if ctx.Err() != nil && c.client == nil && errors.Is(ctx.Err(), context.Canceled) {
		return Seen{}, ctx.Err()
	}
	seen := Seen{Findings: c.finds}
	if c.client == nil {
		return seen, nil
	}
	seen.Note = fmt.Sprintf("%s, as user %s", c.config.Host, cmp.Or(c.user, "unknown"))
	if d := c.skew.Abs(); d > maxSkew {
		side := "ahead of"
		if c.skew < 0 {
			side = "behind"
		}
		seen.Findings = append(seen.Findings, Finding{Topic: ClockSkew,
			What: fmt.Sprintf("the clock of this node is %s %s that of the API server", d.Round(time.Second), side), Fix: s.SetClock,
			Advice: "if it comes back, look at the time service of both machines"})
	}
	return seen, nil
}

// client makes single requests. It needs the time of each answer, which the clients of
// client-go do not return.
type client struct {
	http *http.Client
	base string
}

func newClient(to *rest.Config) (*client, error) {
	h, err := rest.HTTPClientFor(to)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(to)
	if err != nil {
		return nil, err
	}
	return &client{h, base.String()}, nil
}

// maxAnswer bounds an answer.
const maxAnswer = 64 << 20

// call sends body, if any, and reads the answer into answer. It returns the time of the
// API server, zero if it does not say.
func (c *client) call(ctx context.Context, path string, body, answer any) (time.Time, error) {
	method, text := http.MethodGet, []byte(nil)
	if body != nil {
		var err error
		method = http.MethodPost
		if text, err = json.Marshal(body); err != nil {
			return time.Time{}, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return time.Time{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	response, err := c.http.Do(r)
	if err != nil {
		return time.Time{}, err
	}
	defer response.Body.Close()
	date, _ := http.ParseTime(response.Header.Get("Date"))
	text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return date, err
	}
	if response.StatusCode/100 != 2 {
		return date, statusError(response.StatusCode, method, text)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return date, fmt.Errorf("the answer to %s is no JSON: %w", path, err)
	}
	return date, nil
}

func statusError(code int, method string, text []byte) error {
	var s metav1.Status
	if json.Unmarshal(text, &s) == nil && s.Status == metav1.StatusFailure {
		return &apierrors.StatusError{ErrStatus: s}
	}
	return apierrors.NewGenericServerResponse(code, method, schema.GroupResource{}, "", "", 0, true)
}

// Pods is how the configuration distinguishes pods from other clients.
type Pods struct {
	// CIDRs are those of clusterCIDR, none if it is not used.
	CIDRs []netip.Prefix
	// FromNode is whether the podCIDRs of the Node are used.
	FromNode bool
}

// node checks the Node of this machine.
func (s *Cluster) node(ctx context.Context) (Seen, error) {
	if absent := s.absent(ctx); absent != nil {
		return *absent, nil
	}
	c := s.connect(ctx)
	n, err := (&source.APIServer{Config: c.config, NodeName: s.Node}).ReadNode(ctx)
	if apierrors.IsForbidden(err) {
		return NothingToSee("the account may not read Nodes"), nil
	}
	if err != nil {
		return Seen{}, err
	}
	addrs, err := s.Addrs()
	if err != nil {
		return Seen{}, err
	}
	var list corev1.NodeList
	if n == nil || !isThisMachine(n, addrs) { // which may not be permitted
		_, _ = c.client.call(ctx, "/api/v1/nodes?limit=5000", nil, &list)
	}
	return nodeSeen(Machine{s.Node, addrs, s.Pods}, n, list.Items), nil
}

// Machine is what is known of this machine.
type Machine struct {
	Name  string // of the Node, as the proxy would have it
	Addrs []netip.Addr
	Pods  Pods
}

// ManifestNode returns the Check of the Node in manifests.
func ManifestNode(from *source.Manifests, addrs func() ([]netip.Addr, error), pods Pods) Check {
	return Check{Name: "Node", Look: func(ctx context.Context) (Seen, error) {
		n, err := from.ReadNode(ctx)
		if err != nil {
			return Seen{}, err
		}
		all, err := addrs()
		if err != nil {
			return Seen{}, err
		}
		return nodeSeen(Machine{from.NodeName, all, pods}, n, nil), nil
	}}
}

// nodeSeen decides whether n is the Node of machine m. n is nil if there is none. others
// are other Nodes, as far as they are known.
func nodeSeen(m Machine, n *corev1.Node, others []corev1.Node) Seen {
	i := slices.IndexFunc(others, func(o corev1.Node) bool { return isThisMachine(&o, m.Addrs) })
	advice := "set --hostname-override, or hostnameOverride, to the name that kubectl get nodes shows"
	if i >= 0 {
		advice = fmt.Sprintf("Node %s has an address of this machine: start the proxy with --hostname-override=%s", others[i].Name, others[i].Name)
	}
	f := Finding{Topic: NodeUnknown, Subject: m.Name, Advice: advice}
	switch {
	case n == nil:
		f.What = fmt.Sprintf("there is no Node of the name %s", m.Name)
		return Seen{Findings: []Finding{f}}
	case !isThisMachine(n, m.Addrs):
		f.What = fmt.Sprintf("Node %s has the addresses %s, of which this machine has none, so it is another one", m.Name, strings.Join(addrsOf(n), ", "))
		return Seen{Findings: []Finding{f}}
	}
	return Seen{Note: "Node " + m.Name, Findings: podFindings(m.Pods, n)}
}

// addrsOf lists the addresses of a Node.
func addrsOf(n *corev1.Node) []string {
	var all []string
	for _, a := range n.Status.Addresses {
		if _, err := service.ParseAddr(a.Address); err == nil {
			all = append(all, a.Address)
		}
	}
	return all
}

// isThisMachine returns whether a Node has an address of addrs, or none at all. A cloud may have
// addresses that the machine does not know of, but not only such.
func isThisMachine(n *corev1.Node, addrs []netip.Addr) bool {
	all := addrsOf(n)
	return len(all) == 0 || slices.ContainsFunc(all, func(s string) bool {
		a, err := service.ParseAddr(s)
		return err == nil && slices.Contains(addrs, a)
	})
}

// podFindings checks that the pods of a Node count as pods.
func podFindings(p Pods, n *corev1.Node) []Finding {
	own := n.Spec.PodCIDRs
	if len(own) == 0 && n.Spec.PodCIDR != "" {
		own = []string{n.Spec.PodCIDR}
	}
	if p.FromNode && len(own) == 0 {
		return []Finding{{Topic: PodCIDR, Subject: n.Name, What: fmt.Sprintf("detectLocalMode is NodeCIDR, and Node %s has no podCIDRs", n.Name),
			Advice: "let the controller manager assign them (--allocate-node-cidrs), or set detectLocalMode to ClusterCIDR and clusterCIDR to the range of the network plugin"}}
	}
	var all []Finding
	for _, text := range own {
		pods, err := service.ParsePrefix(text)
		if err != nil {
			continue
		}
		same := service.InFamily(p.CIDRs, service.FamilyOf(pods.Addr()))
		fits := slices.ContainsFunc(same, func(c netip.Prefix) bool { return c.Bits() <= pods.Bits() && c.Contains(pods.Addr()) })
		if len(same) > 0 && !fits {
			all = append(all, Finding{Topic: PodCIDR, Subject: text, What: fmt.Sprintf("the podCIDR %s of Node %s is not in the clusterCIDR %s", text, n.Name, printable.Join(same, ", ")),
				Advice: "set --cluster-cidr, or clusterCIDR, to the range of all pods"})
		}
	}
	return all
}

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
func (s *Cluster) rights(ctx context.Context) (Seen, error) {
	if absent := s.absent(ctx); absent != nil {
		return *absent, nil
	}
	c := s.connect(ctx)
	var missing []right
	for _, r := range rights {
		allowed, err := c.client.may(ctx, r)
		if err != nil {
			return Seen{}, fmt.Errorf("ask whether the account may %s: %w", r, err)
		}
		if !allowed {
			missing = append(missing, r)
		}
	}
	seen := Seen{Note: fmt.Sprintf("%d of them", len(rights))}
	if len(missing) > 0 {
		seen.Findings = []Finding{rightsFinding(missing, c.user)}
	}
	return seen, nil
}

func rightsFinding(missing []right, user string) Finding {
	f := Finding{Topic: MissingRights, Severity: Risk}
	var names []string
	for _, r := range missing {
		names = append(names, r.String())
		if r.needed {
			f.Severity = Blocks
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
