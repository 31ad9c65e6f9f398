// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real control plane, etcd and kube-apiserver, for tests: on one
// host of a netlab network, with fresh certificates, where the nodes of that network
// reach it. No controller and no kubelet runs. Tests write EndpointSlices and Nodes
// themselves, and so decide what the proxy learns and when.
//
// The programs are built from source, at the versions in test/e2e/go.mod, and kept in the
// user's cache folder. That module has no packages of its own. The helpers of tests are
// here, in the product's module, beside the network they run in, and the API server's
// many requirements stay out of the product's go.mod. The tests define what the proxy
// should do.
package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubeproxy/test/authority"
	"kubeproxy/test/netlab"
	"kubeproxy/test/thirdparty"
	"kubeproxy/test/vm"
)

// Options describe a control plane.
type Options struct {
	// Host is where it runs: best a client of the lab that does nothing else. The nodes
	// reach it there at Cluster.Server.
	Host *netlab.Host
	// Authorization selects the authorizer.
	Authorization Authorization
	// Flags are more flags of the API server. The last of two wins.
	Flags []string
	// Dir is a folder for its files. It may be removed after the cluster is closed.
	Dir string
}

// Authorization is an authorization mode of the API server.
type Authorization string

// The authorization modes. With RBAC, the API server creates the default roles, including
// system:node-proxier. See https://kubernetes.io/docs/reference/access-authn-authz/rbac/
const (
	AlwaysAllow Authorization = ""
	RBAC        Authorization = "RBAC"
)

// The ranges of ClusterIPs.
const (
	ServiceCIDRv4 = "10.96.0.0/12"
	ServiceCIDRv6 = "fd00:10:96::/112"
)

// Cluster is a control plane. Its methods may be called from several goroutines.
type Cluster struct {
	// Client has all privileges, without a rate limit.
	Client          *kubernetes.Clientset
	Etcd, APIServer *Process
	Server          string // the API server's URL

	host  *netlab.Host
	dir   string
	ca    *authority.Authority
	token string // of an administrator
}

// New starts a control plane with the programs of Build and returns when it is ready. The
// caller closes it.
func New(ctx context.Context, programs Programs, o Options) (*Cluster, error) {
	c := &Cluster{
		Server: "https://" + o.Host.IPv4.String() + ":" + apiPort,
		host:   o.Host, dir: o.Dir, token: rand.Text(),
	}
	var err error
	if c.ca, err = authority.New(time.Time{}); err != nil {
		return nil, fmt.Errorf("make an authority for certificates: %w", err)
	}
	if err := c.writeFiles(); err != nil {
		return nil, err
	}
	if c.Client, err = c.client(); err != nil {
		return nil, err
	}
	c.Etcd = c.process("etcd", programs.Etcd, c.etcdFlags(), c.etcdReady)
	c.APIServer = c.process("kube-apiserver", programs.APIServer, c.apiFlags(o), c.apiReady)
	if err := errors.Join(c.Etcd.launch(), c.APIServer.Start(ctx)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) process(name, program string, args []string, ready func(context.Context) error) *Process {
	return &Process{name: name, host: c.host, program: program, args: args, log: c.path(name + ".log"), ready: ready}
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// Close ends the control plane.
func (c *Cluster) Close() error {
	c.APIServer.Kill()
	c.Etcd.Kill()
	return nil
}

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
	TempDir() string
}

// Start runs a control plane for one test, and builds its programs if they are missing.
// If the test fails, its log contains the end of their logs.
func Start(t TB, o Options) *Cluster {
	t.Helper()
	programs, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Fatalf("control plane: %v", err)
	}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	c, err := New(t.Context(), programs, o)
	if err != nil {
		t.Fatalf("control plane: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Logf("close the control plane: %v", err)
		}
		if t.Failed() {
			t.Logf("log of etcd:\n%s\nlog of kube-apiserver:\n%s", c.Etcd.Tail(), c.APIServer.Tail())
		}
	})
	return c
}

const apiPort = "6443"

// The API server's files in the cluster's folder.
const (
	authorityFile = "authority.crt"
	certFile      = "server.crt"
	keyFile       = "server.key"
	accountKey    = "account.key"
	tokenFile     = "tokens.csv"
)

func (c *Cluster) apiFlags(o Options) []string {
	mode := "AlwaysAllow"
	if o.Authorization != AlwaysAllow {
		mode = string(o.Authorization)
	}
	flags := []string{
		"--etcd-servers=" + etcdURL, "--service-cluster-ip-range=" + ServiceCIDRv4 + "," + ServiceCIDRv6,
		"--bind-address=::", "--secure-port=" + apiPort, "--advertise-address=" + c.host.IPv4.String(),
		"--tls-cert-file=" + c.path(certFile), "--tls-private-key-file=" + c.path(keyFile),
		"--client-ca-file=" + c.path(authorityFile), "--token-auth-file=" + c.path(tokenFile),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path(accountKey), "--service-account-signing-key-file=" + c.path(accountKey),
		"--authorization-mode=" + mode,
		// No controller runs that would create what these plugins wait for.
		"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
		// Tests send many requests at once, and measure the proxy, not the queue.
		"--enable-priority-and-fairness=false", "--max-requests-inflight=2000", "--max-mutating-requests-inflight=2000",
		"--profiling=false",
	}
	return append(flags, o.Flags...)
}

// writeFiles creates the keys, certificates and tokens of a new cluster.
func (c *Cluster) writeFiles() error {
	files := map[string][]byte{
		authorityFile: c.ca.PEM,
		tokenFile:     []byte(c.token + ",admin,admin,system:masters\n"),
	}
	for _, name := range []string{keyFile, accountKey} {
		key, err := authority.NewKey()
		if err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
		if files[name], err = authority.KeyPEM(key); err != nil {
			return fmt.Errorf("make %s: %w", name, err)
		}
	}
	var errs []error
	for name, text := range files {
		errs = append(errs, os.WriteFile(c.path(name), text, 0o600))
	}
	return errors.Join(errors.Join(errs...), c.SetServerCertificate(time.Now().Add(authority.Backdated)))
}

// SetServerCertificate gives the API server a certificate that is valid until some time,
// which may be past. A running server uses it within moments for new connections.
func (c *Cluster) SetServerCertificate(until time.Time) error {
	text, err := os.ReadFile(c.path(keyFile))
	if err != nil {
		return err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return fmt.Errorf("%s: no key in PEM", c.path(keyFile))
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return fmt.Errorf("%s: %w", c.path(keyFile), err)
	}
	server := authority.Subject{
		Name: "kube-apiserver", Until: until,
		Hosts: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		Addrs: []netip.Addr{
			c.host.IPv4, c.host.IPv6, netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback(),
			netip.MustParsePrefix(ServiceCIDRv4).Addr().Next(), netip.MustParsePrefix(ServiceCIDRv6).Addr().Next(),
		},
	}
	cert, err := c.ca.Issue(server, key)
	if err != nil {
		return err
	}
	// In one step: a server that reads half a certificate logs an error.
	next := c.path(certFile + ".next")
	if err := os.WriteFile(next, cert, 0o600); err != nil {
		return err
	}
	return os.Rename(next, c.path(certFile))
}

// apiReady waits for the objects that the server creates shortly after it is ready: tests
// write to those namespaces, and count Services.
func (c *Cluster) apiReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, path := range []string{"/readyz", "/api/v1/namespaces/kube-system", "/api/v1/namespaces/default/services/kubernetes"} {
		if _, err := c.Client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

func (c *Cluster) client() (*kubernetes.Clientset, error) {
	config := &rest.Config{
		Host: c.Server, BearerToken: c.token, TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.PEM},
		Dial: c.dial, QPS: -1, WarningHandler: rest.NoWarnings{},
		ContentConfig: rest.ContentConfig{
			ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return client, nil
}

const (
	etcdPort     = "2379"
	etcdPeerPort = "2380"
	etcdURL      = "http://127.0.0.1:" + etcdPort
)

// etcdFlags configure a single member that waits for no others. It loses nothing when
// only the process ends: its writes are in the kernel's page cache.
func (c *Cluster) etcdFlags() []string {
	const peer = "http://127.0.0.1:" + etcdPeerPort
	return []string{
		"--name=test", "--data-dir=" + c.path("etcd"), "--log-level=warn",
		"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer,
		"--heartbeat-interval=20", "--election-timeout=200", "--unsafe-no-fsync",
		"--quota-backend-bytes=4294967296",
	}
}

func (c *Cluster) etcdReady(ctx context.Context) error {
	var health struct{ Health string }
	if err := c.etcd(ctx, http.MethodGet, "/health", nil, &health); err != nil {
		return err
	}
	if health.Health != "true" {
		return fmt.Errorf("etcd says health %q", health.Health)
	}
	return nil
}

// Compact makes etcd drop all versions of objects but the latest. A watch that continues
// from an older version then fails with "expired", if the API server has started since; a
// running one has its own watch cache. See
// https://etcd.io/docs/latest/op-guide/maintenance/
func (c *Cluster) Compact(ctx context.Context) error {
	var now struct{ Header struct{ Revision string } }
	anything := map[string]any{"key": []byte("/"), "limit": 1}
	if err := c.etcd(ctx, http.MethodPost, "/v3/kv/range", anything, &now); err != nil {
		return fmt.Errorf("read etcd's revision: %w", err)
	}
	upTo := map[string]any{"revision": now.Header.Revision, "physical": true}
	if err := c.etcd(ctx, http.MethodPost, "/v3/kv/compaction", upTo, &now); err != nil {
		return fmt.Errorf("compact etcd to revision %s: %w", now.Header.Revision, err)
	}
	return nil
}

// Store writes an object into etcd under a key such as
// /registry/services/specs/NAMESPACE/NAME, without validation and defaulting by the API
// server. Clients receive it unchanged, like an object that another version of the API
// server admitted. The object needs its kind and apiVersion.
func (c *Cluster) Store(ctx context.Context, key string, object any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return fmt.Errorf("store %s: %w", key, err)
	}
	put := map[string]any{"key": []byte(key), "value": text}
	if err := c.etcd(ctx, http.MethodPost, "/v3/kv/put", put, &struct{}{}); err != nil {
		return fmt.Errorf("store %s: %w", key, err)
	}
	return nil
}

// etcd sends a request to the JSON gateway of etcd.
func (c *Cluster) etcd(ctx context.Context, method, path string, question, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, etcdURL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: c.dial, DisableKeepAlives: true}}
	a, err := client.Do(r)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, path, a.Status, text)
	}
	return json.Unmarshal(text, answer)
}

// dial connects from the cluster's own host, as the caller is in another network.
func (c *Cluster) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return c.host.Dial(ctx, network, addr)
}

// Process is a program of the control plane, which may be ended and started again. It
// never outlives the test program.
type Process struct {
	name    string
	host    *netlab.Host
	program string
	args    []string
	log     string // a file, which all runs append to
	// ready returns why the program is not ready, nil when it is.
	ready func(context.Context) error

	mu    sync.Mutex
	cmd   *exec.Cmd // nil when it does not run
	ended chan struct{}
}

// awaitTimeout is how long a program may take until it is ready on a busy machine.
const awaitTimeout = 2 * time.Minute

// Start starts the program, with the flags of the previous run, and returns when it is
// ready.
func (p *Process) Start(ctx context.Context) error {
	if err := p.launch(); err != nil {
		return err
	}
	return p.await(ctx)
}

func (p *Process) launch() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return fmt.Errorf("start %s: it runs", p.name)
	}
	f, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer f.Close() // the program has its own by then
	cmd := exec.Command(p.program, p.args...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := p.host.Start(cmd); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its error is in the log, and its end is seen in await
		close(ended)
	}()
	p.cmd, p.ended = cmd, ended
	return nil
}

func (p *Process) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	for {
		err := p.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			p.Kill()
			return fmt.Errorf("%s ended instead of getting ready; the end of its log:\n%s", p.name, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", p.name, err, p.Tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Kill ends the program as a crash does, if it runs, and returns when it has gone.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // fails only if it has ended by itself
	<-p.ended
	p.cmd = nil
}

// Restart is Kill and Start.
func (p *Process) Restart(ctx context.Context) error {
	p.Kill()
	return p.Start(ctx)
}

// Pause stops the program without ending it, and returns when it has stopped. The kernel
// still accepts its connections and data for it, but the program does not answer.
func (p *Process) Pause() error {
	pid := p.Pid()
	if pid == 0 {
		return fmt.Errorf("pause %s: it does not run", p.name)
	}
	return netlab.Pause(pid)
}

// Resume continues a paused program.
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return fmt.Errorf("send %s to %s: it does not run", s, p.name)
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %s to %s: %w", s, p.name, err)
	}
	return nil
}

// Pid is the program's process number, 0 when it does not run.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Memory returns the program's resident set in bytes.
func (p *Process) Memory() (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kilobytes * 1024, err
		}
	}
	return 0, fmt.Errorf("memory of %s: %w", p.name, errors.New("no VmRSS: it has ended"))
}

// Tail returns the last lines of the program's log.
func (p *Process) Tail() string {
	const most = 40
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-most-1):], nil))
}

// Programs are the paths of the control plane's programs.
type Programs struct{ Etcd, APIServer string }

// Build returns the programs of the control plane, and builds them where they are missing,
// see thirdparty.Module. A virtual machine cannot build, so the programs are installed
// there in advance.
func Build(ctx context.Context, out io.Writer) (Programs, error) {
	folder := os.Getenv(vm.ControlPlaneVariable)
	if folder == "" {
		var err error
		if folder, err = thirdparty.Kubernetes.Build(ctx, out, "etcd", "kube-apiserver"); err != nil {
			return Programs{}, err
		}
	}
	return Programs{Etcd: filepath.Join(folder, "etcd"), APIServer: filepath.Join(folder, "kube-apiserver")}, nil
}

// UpstreamProxy returns the path of Kubernetes' own kube-proxy.exe for windows/amd64, of
// the control plane's version. It is built and kept as the control plane is.
func UpstreamProxy(ctx context.Context, out io.Writer) (string, error) {
	folder, err := thirdparty.KubernetesForWindows.Build(ctx, out, "kube-proxy.exe")
	return filepath.Join(folder, "kube-proxy.exe"), err
}

// connection is the key of a request's connection in its context.
type connection struct{}

var errTruncated = errors.New("the rest is cut off")

// truncate passes a request on, and cuts the response as the fault describes.
func truncate(fault Fault, pass http.Handler, w http.ResponseWriter, r *http.Request) {
	if fault.Cut == 0 {
		pass.ServeHTTP(w, r)
		return
	}
	defer func() {
		// The handler panics if the response is incomplete, so that it does not look
		// complete. Here it should.
		if p := recover(); p != nil && p != any(http.ErrAbortHandler) {
			panic(p)
		}
		if c, ok := r.Context().Value(connection{}).(net.Conn); ok && fault.Reset {
			reset(c)
		}
	}()
	pass.ServeHTTP(&truncatedWriter{ResponseWriter: w, left: fault.Cut}, r)
}

// reset closes c with a TCP reset.
func reset(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // it may be closed already, which is the aim
	}
	_ = c.Close()
}

// truncatedWriter passes only the first bytes of a response.
type truncatedWriter struct {
	http.ResponseWriter
	left int
}

// Unwrap gives the handler access to Flush.
func (b *truncatedWriter) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (b *truncatedWriter) WriteHeader(code int) {
	b.Header().Del("Content-Length") // else the response would not look complete
	b.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (b *truncatedWriter) Write(text []byte) (int, error) {
	if len(text) <= b.left {
		n, err := b.ResponseWriter.Write(text)
		b.left -= n
		return n, err
	}
	n, err := b.ResponseWriter.Write(text[:b.left])
	b.left -= n
	_ = http.NewResponseController(b.ResponseWriter).Flush() // the client may be gone
	return n, errors.Join(err, errTruncated)
}
