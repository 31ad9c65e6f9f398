// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	baseconfig "k8s.io/component-base/config/v1alpha1"

	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/document"
	"kubeproxy/common/explain"
	"kubeproxy/common/kubeclient"
	"kubeproxy/common/printable"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/statusview"
	"kubeproxy/common/terminal"
	"kubeproxy/common/trafficview"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// ServerHelp is the help of --server of every command that asks the running proxy.
const ServerHelp = "`HOST[:PORT]` of the metrics server of the running proxy; overrides --config"

// Server is the address of the proxy, and the time it may take to answer.
type Server struct {
	// Config is a configuration file with the address. Addr overrides it.
	Config, Addr string
	Timeout      time.Duration
	Modes        mode.Table
}

// Register registers the flags of s.
func (s *Server) Register(fs *pflag.FlagSet) {
	fs.StringVar(&s.Config, "config", "", "take the address from metricsBindAddress in this configuration `FILE`")
	fs.StringVar(&s.Addr, "server", "", ServerHelp)
	fs.StringVar(&s.Addr, "metrics-bind-address", "", "`HOST[:PORT]`, the same as --server")
	cli.Timeout(fs, &s.Timeout, 10*time.Second, "how much `TIME` the running proxy has to answer")
}

// Address returns the address of the metrics server, as host:port. Without flags it is that of
// the proxy in whose container this process runs, or else the default.
func (s *Server) Address() (string, error) {
	if s.Addr != "" {
		return statusview.DialAddress(s.Addr)
	}
	from := s.Config
	var c *config.Config
	if from != "" {
		var err error
		if c, err = config.Load(&config.Flags{Modes: s.Modes.Config(), Config: from}, host.OS); err != nil {
			return "", err
		}
	} else if c, from = proxyHere(s.Modes), "the configuration of process 1"; c == nil {
		return statusview.DefaultServer, nil
	}
	if _, port, _ := net.SplitHostPort(c.MetricsBindAddress); port == "0" {
		return "", fmt.Errorf("%s: metricsBindAddress has port 0, so the proxy serves no metrics and cannot be asked", from)
	}
	return statusview.DialAddress(c.MetricsBindAddress)
}

// containerProxy returns the arguments of the proxy in whose container this process runs by kubectl
// exec: process 1 there. Which of a host's is meant is not to be guessed.
func containerProxy(proc fs.FS, self int) []string {
	line, err := fs.ReadFile(proc, "1/cmdline") // see proc_pid_cmdline(5)
	if err != nil || self == 1 {
		return nil
	}
	var args []string
	for arg := range bytes.SplitSeq(bytes.TrimSuffix(line, []byte{0}), []byte{0}) {
		args = append(args, string(arg))
	}
	if path.Base(args[0]) != "kube-proxy" {
		return nil
	}
	return args[1:]
}

// configOf returns a proxy's configuration by its arguments, nil for others.
func configOf(args []string, modes mode.Table) *config.Config {
	flags := config.Flags{Modes: modes.Config()}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.ParseErrorsAllowlist.UnknownFlags = true
	flags.Register(fs)
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 {
		return nil
	}
	c, err := config.Load(&flags, host.OS)
	if err != nil { // the file may have got worse since the start
		return nil
	}
	return c
}

// proxyHere returns the configuration of the proxy of this container, nil if there is none.
func proxyHere(modes mode.Table) *config.Config {
	args := containerProxy(os.DirFS("/proc"), os.Getpid())
	if args == nil {
		return nil
	}
	return configOf(args, modes)
}

// Top asks a running proxy what Services carry.
type Top struct {
	Server Server
	Query  trafficview.Query

	format, order string
	watch         bool
	limit         int
}

const asTable = "table"

// Register registers the flags of t.
func (t *Top) Register(fs *pflag.FlagSet) {
	t.Server.Register(fs)
	fs.StringVarP(&t.Query.Namespace, "namespace", "n", "", "look into this `NAMESPACE` alone")
	fs.StringVarP(&t.format, "output", "o", asTable, "`FORMAT` of what is printed: table, "+document.DataForms)
	fs.StringVar(&t.order, "sort", string(trafficview.ByRate), "`ORDER` of Services and endpoints: rate, connections, bytes or name")
	fs.IntVar(&t.limit, "limit", 20, "print this `NUMBER` of Services, and of endpoints, 0 for all; JSON has all")
	fs.DurationVar(&t.Query.Interval, "interval", 2*time.Second, "`TIME` between two readings, 0 for totals without rates")
	fs.BoolVarP(&t.watch, "watch", "w", false, "go on until an interrupt")
}

func (t *Top) check() error {
	t.Query.Sort, t.Query.Endpoints = trafficview.Order(t.order), t.Query.Name != ""
	switch {
	case !slices.Contains(trafficview.Orders, t.Query.Sort):
		return fmt.Errorf("--sort: %q is unknown: want rate, connections, bytes or name", t.order)
	case t.Query.Interval < 0 || t.watch && t.Query.Interval == 0:
		return fmt.Errorf("--interval: %s is too short: want a time such as 2s", t.Query.Interval)
	case t.limit < 0:
		return fmt.Errorf("--limit: %d is too small: want 0 or more", t.limit)
	}
	return document.CheckOutput(t.format, asTable)
}

// Run asks, and writes answers to out, with --watch until ctx ends, which is no error.
func (t *Top) Run(ctx context.Context, out, notices io.Writer) error {
	err := t.check()
	if err == nil {
		t.Query.Server, err = t.Server.Address()
	}
	if err != nil {
		return err
	}
	t.Query.Timeout = t.Server.Timeout
	endNotice := sync.OnceFunc(terminal.NoticeIfSlow(notices, "kube-proxy: taking two readings of what Services carry ..."))
	pages := &terminal.Pages{To: out}
	err = t.Query.Follow(ctx, func(a *trafficview.Answer) (bool, error) {
		endNotice()
		return t.watch, t.show(a, pages)
	})
	endNotice()
	if t.watch && errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

func (t *Top) show(a *trafficview.Answer, pages *terminal.Pages) error {
	if t.format != asTable {
		return document.WriteData(pages.To, t.format, a)
	}
	var page bytes.Buffer
	if err := (trafficview.View{Limit: t.limit, Colour: terminal.Coloured(pages.To), Width: terminal.Columns(pages.To)}).Print(&page, a); err != nil {
		return err
	}
	if t.watch {
		return pages.Show(page.Bytes())
	}
	_, err := pages.To.Write(page.Bytes())
	return err
}

// Client asks a running proxy what happens to connections.
type Client struct {
	Server  string // HOST:PORT of its metrics server
	Version string // of this program
	// Kubeconfig is the file that the user names. Without one, it is that of kubectl: the
	// one in $KUBECONFIG, else ~/.kube/config, else the account of the pod.
	Kubeconfig string
	// PodAddresses and PodNode are those of the question's pod, if the user named them.
	PodAddresses []netip.Addr
	PodNode      string
	// Probes means that the caller will dial what the answer has.
	Probes bool
}

// Explain asks. Pods that EndpointSlices do not refer to are looked up with the user's rights.
func (c Client) Explain(ctx context.Context, q explain.Query) (*explain.Explanation, error) {
	question := url.Values{"source": {q.Source}, "destination": {q.Destination}, "interface": {q.Interface}}
	if c.Probes {
		question.Set("probe", host.Prober())
	}
	answer, err := c.ask(ctx, question)
	unknown, is := errors.AsType[*unknownPodError](err)
	if !is {
		return answer, err
	}
	if err := c.namePod(ctx, q.Source, question); err != nil {
		return nil, fmt.Errorf("%w; %s", unknown, printable.Error(err))
	}
	return c.ask(ctx, question)
}

// unknownPodError is the answer of a proxy that does not know the pod.
type unknownPodError struct{ text string }

func (e *unknownPodError) Error() string { return e.text }

// SilentError means that no proxy answered.
type SilentError struct{ Err error }

func (e *SilentError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *SilentError) Unwrap() error { return e.Err }

func (c Client) ask(ctx context.Context, question url.Values) (*explain.Explanation, error) {
	q := statusview.Query{Server: c.Server, Version: c.Version}
	body, accepted, err := q.Fetch(ctx, "/explain?"+question.Encode())
	if err != nil {
		return nil, &SilentError{err}
	}
	var answer struct {
		explain.Explanation
		explain.Refusal
	}
	switch err := json.Unmarshal(body, &answer); {
	case err != nil:
		return nil, fmt.Errorf("%s answers something else than an explanation: %w", c.Server, err)
	case answer.UnknownPod:
		return nil, &unknownPodError{printable.Text(answer.Error)}
	case !accepted:
		return nil, errors.New(printable.Text(answer.Error))
	}
	return &answer.Explanation, nil
}

// namePod adds the addresses of the pod that source names to the question.
func (c Client) namePod(ctx context.Context, source string, question url.Values) error {
	_, name, _ := strings.Cut(source, "/")
	namespace, name, _ := strings.Cut(name, "/")
	addrs, node := c.PodAddresses, c.PodNode
	if len(addrs) == 0 {
		var err error
		if addrs, node, err = c.pod(ctx, types.NamespacedName{Namespace: namespace, Name: name}); err != nil {
			return err
		}
	}
	for _, x := range addrs {
		question.Add("podAddress", x.String())
	}
	question.Set("podNode", node)
	return nil
}

// pod returns a pod's addresses and node, or which right the user lacks.
func (c Client) pod(ctx context.Context, id types.NamespacedName) ([]netip.Addr, string, error) {
	to, err := c.apiServer()
	if err != nil {
		return nil, "", err
	}
	pod, err := source.Lookup{Config: to}.Pod(ctx, id)
	switch {
	case apierrors.IsNotFound(err):
		return nil, "", fmt.Errorf("the API server %s has no pod %s", to.Host, id)
	case apierrors.IsForbidden(err):
		return nil, "", fmt.Errorf("%w: want the right to get pods in namespace %s, or --kubeconfig FILE of somebody who has it", err, id.Namespace)
	case apierrors.IsUnauthorized(err):
		return nil, "", fmt.Errorf("the API server %s does not accept the credentials: %w", to.Host, err)
	case err != nil:
		return nil, "", fmt.Errorf("ask the API server %s for the pod: %w", to.Host, err)
	}
	var addrs []netip.Addr
	for _, x := range pod.Status.PodIPs {
		if addr, err := service.ParseAddr(x.IP); err == nil {
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == 0 {
		return nil, "", fmt.Errorf("pod %s has no address yet: its phase is %s", id, pod.Status.Phase)
	}
	return addrs, pod.Spec.NodeName, nil
}

func (c Client) apiServer() (*rest.Config, error) {
	agent := "kube-proxy/" + c.Version
	if c.Kubeconfig != "" {
		o := kubeclient.Options{Connection: baseconfig.ClientConnectionConfiguration{Kubeconfig: c.Kubeconfig}, UserAgent: agent}
		return o.Config()
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	to, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("there is no kubeconfig to ask the API server with: want --kubeconfig FILE, $KUBECONFIG or ~/.kube/config")
	}
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig of kubectl: %w", err)
	}
	to.UserAgent = agent
	return to, nil
}
