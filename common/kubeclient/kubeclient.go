// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubeclient has what every client of the API server shares.
//
// The settings of the connection go in. The configuration of a client, the remedy for an
// error, a short log of outages, and counts of requests come out. The package reads
// nothing from the API server itself.
package kubeclient

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clientmetrics "k8s.io/client-go/tools/metrics"
	baseconfig "k8s.io/component-base/config/v1alpha1"
	"k8s.io/klog/v2"

	filewatch "kubeproxy/common/files"
	"kubeproxy/common/metrics"
	"kubeproxy/common/printable"
	"kubeproxy/common/source"
)

// readKubeconfig reads a kubeconfig whose files all exist, with master, if set, as server.
func readKubeconfig(file, master string) (*rest.Config, error) {
	wrap := func(err error) error { return fmt.Errorf("read kubeconfig %s: %w", printable.Text(file), err) }
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return nil, wrap(errors.New("it is a directory; want a file in YAML"))
	}
	k, err := loadKubeconfig(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, wrap(errors.New("no such file; --kubeconfig, or clientConnection.kubeconfig, names it"))
	case errors.Is(err, os.ErrPermission):
		return nil, wrap(errors.New("permission denied; this user must be allowed to read it"))
	case err != nil:
		return nil, wrap(fmt.Errorf("%w; want YAML of kind Config, apiVersion v1", err))
	}
	if err := errors.Join(resolveRooted(k, file), clientcmd.ResolveLocalPaths(k)); err != nil {
		return nil, wrap(err)
	}
	if err := checkKubeconfig(k, master); err != nil {
		return nil, wrap(err)
	}
	over := &clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: master}}
	to, err := clientcmd.NewDefaultClientConfig(*k, over).ClientConfig()
	if err != nil {
		return nil, wrap(err)
	}
	return to, nil
}

// Read returns the text of the kubeconfig if Config can use it and what it refers to, else why not.
func (o *Options) Read() ([]byte, error) {
	if _, err := o.Config(); err != nil {
		return nil, err
	}
	text, _, err := filewatch.Read(o.Connection.Kubeconfig, maxCredentials)
	return text, err
}

// maxCredentials bounds, in bytes, the kubeconfig and each file that it refers to.
const maxCredentials = 4 << 20

// loadKubeconfig is clientcmd.LoadFromFile without blocking on pipes and devices.
func loadKubeconfig(file string) (*clientcmdapi.Config, error) {
	text, _, err := filewatch.Read(file, maxCredentials)
	if err != nil {
		return nil, err
	}
	k, err := clientcmd.Load(text)
	if err != nil {
		return nil, err
	}
	for _, c := range k.Clusters {
		c.LocationOfOrigin = file
	}
	for _, u := range k.AuthInfos {
		u.LocationOfOrigin = file
	}
	for _, c := range k.Contexts {
		c.LocationOfOrigin = file
	}
	return k, nil
}

// resolveRooted completes the paths in k that begin with a slash and are not absolute, which Windows has: they are on
// the drive of file. The volumes of a HostProcess pod are there since containerd 1.7. Before, they are below a folder
// that a variable names:
// https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/#volume-mounts
func resolveRooted(k *clientcmdapi.Config, file string) error {
	var refs []*string
	for _, c := range k.Clusters {
		refs = append(refs, clientcmd.GetClusterFileReferences(c)...)
	}
	for _, u := range k.AuthInfos {
		refs = append(refs, clientcmd.GetAuthInfoFileReferences(u)...)
	}
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		if *ref == "" || !os.IsPathSeparator((*ref)[0]) || filepath.IsAbs(*ref) {
			continue
		}
		path := filepath.Join(filepath.VolumeName(file), *ref)
		if mounts := os.Getenv("CONTAINER_SANDBOX_MOUNT_POINT"); mounts != "" && !exists(path) {
			if mounted := filepath.Join(mounts, *ref); exists(mounted) {
				path = mounted
			}
		}
		*ref = path
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkKubeconfig follows the references in k, and returns everything that is missing.
func checkKubeconfig(k *clientcmdapi.Config, master string) error {
	if len(k.Clusters) == 0 && master == "" {
		return errors.New("clusters: it names no cluster; want clusters, users, contexts and current-context")
	}
	c := k.Contexts[k.CurrentContext]
	switch {
	case k.CurrentContext == "" && master == "":
		return fmt.Errorf("current-context is missing; want %s", oneOf(k.Contexts))
	case k.CurrentContext == "":
		return nil
	case c == nil:
		return fmt.Errorf("current-context: there is no context %q; want %s", k.CurrentContext, oneOf(k.Contexts))
	}
	cluster, user := k.Clusters[c.Cluster], k.AuthInfos[c.AuthInfo]
	var errs []error
	switch field := fmt.Sprintf("contexts[%s].context.cluster", k.CurrentContext); {
	case cluster != nil:
		errs = append(errs, checkCluster(c.Cluster, cluster, master))
	case master == "":
		errs = append(errs, fmt.Errorf("%s: there is no cluster %q; want %s", field, c.Cluster, oneOf(k.Clusters)))
	}
	switch field := fmt.Sprintf("contexts[%s].context.user", k.CurrentContext); {
	case user != nil:
		errs = append(errs, checkUser(c.AuthInfo, user))
	case c.AuthInfo == "":
		errs = append(errs, fmt.Errorf("%s is missing; want %s", field, oneOf(k.AuthInfos)))
	default:
		errs = append(errs, fmt.Errorf("%s: there is no user %q; want %s", field, c.AuthInfo, oneOf(k.AuthInfos)))
	}
	return errors.Join(errs...)
}

// oneOf lists the names that exist.
func oneOf[T any](of map[string]T) string {
	if len(of) == 0 {
		return "one that is defined, and none is"
	}
	return "one of " + strings.Join(slices.Sorted(maps.Keys(of)), ", ")
}

func checkCluster(name string, c *clientcmdapi.Cluster, master string) error {
	at := fmt.Sprintf("clusters[%s].cluster.", name)
	var errs []error
	switch {
	case master != "": // master replaces the address, and has been checked
	case c.Server == "":
		errs = append(errs, fmt.Errorf("%sserver is missing; want an address like https://192.0.2.1:6443", at))
	default:
		errs = append(errs, checkServer(at+"server", c.Server))
	}
	errs = append(errs, checkFile(at+"certificate-authority", c.CertificateAuthority))
	ca := c.CertificateAuthorityData
	if len(ca) == 0 && c.CertificateAuthority != "" {
		ca, _, _ = filewatch.Read(c.CertificateAuthority, maxCredentials) // checkFile has tried it
	}
	if len(ca) > 0 && !x509.NewCertPool().AppendCertsFromPEM(ca) {
		errs = append(errs, fmt.Errorf("%scertificate-authority holds no certificate; want PEM, in certificate-authority-data as base64 of that", at))
	}
	return errors.Join(errs...)
}

// checkServer returns why the address of an API server in a field or flag is invalid.
func checkServer(field, server string) error {
	text := server
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err == nil && u.Hostname() != "" && (u.Scheme == "http" || u.Scheme == "https") {
		if _, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s: %q is no address; want one like https://192.0.2.1:6443", field, server)
}

func checkUser(name string, u *clientcmdapi.AuthInfo) error {
	at := fmt.Sprintf("users[%s].user.", name)
	return errors.Join(
		checkFile(at+"client-certificate", u.ClientCertificate),
		checkFile(at+"client-key", u.ClientKey),
		checkFile(at+"tokenFile", u.TokenFile),
		checkPair(at, u),
	)
}

// checkFile returns why the file in a field cannot be read.
func checkFile(field, file string) error {
	if file == "" {
		return nil
	}
	if err := filewatch.Check(filepath.Clean(file), maxCredentials); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

func checkPair(at string, u *clientcmdapi.AuthInfo) error {
	if len(u.ClientCertificateData) == 0 || len(u.ClientKeyData) == 0 {
		return nil // the content may change, so it is checked at each use
	}
	if _, err := tls.X509KeyPair(u.ClientCertificateData, u.ClientKeyData); err != nil {
		return fmt.Errorf("%sclient-certificate-data and client-key-data: %w; want PEM of a certificate and its key, as base64", at, err)
	}
	return nil
}

// Expired returns when the client certificate expired, of which the API server says just 401.
func Expired(to *rest.Config, now time.Time) (since time.Time, is bool) {
	text := to.CertData
	if len(text) == 0 && to.CertFile != "" {
		text, _, _ = filewatch.Read(to.CertFile, maxCredentials)
	}
	if len(text) == 0 {
		return time.Time{}, false
	}
	// The API client reports a certificate that cannot be parsed.
	cert, err := x509.ParseCertificate(firstCertificate(text))
	if err != nil {
		return time.Time{}, false
	}
	return cert.NotAfter, now.After(cert.NotAfter)
}

// firstCertificate returns the first certificate in PEM text, nil without one.
func firstCertificate(text []byte) []byte {
	for {
		block, rest := pem.Decode(text)
		switch {
		case block == nil:
			return nil
		case block.Type == "CERTIFICATE":
			return block.Bytes
		}
		text = rest
	}
}

// Options are the settings of the connection to the API server.
type Options struct {
	Connection baseconfig.ClientConnectionConfiguration
	Master     string // the address, in place of the kubeconfig's
	UserAgent  string
}

// Config returns the client configuration: the kubeconfig's, with Master, or the cluster's.
func (o *Options) Config() (*rest.Config, error) {
	file := o.Connection.Kubeconfig
	if o.Master != "" {
		if err := checkServer("--master", o.Master); err != nil {
			return nil, err
		}
	}
	build := rest.InClusterConfig
	switch {
	case file != "":
		build = func() (*rest.Config, error) { return readKubeconfig(file, o.Master) }
	case o.Master != "":
		build = func() (*rest.Config, error) { return clientcmd.BuildConfigFromFlags(o.Master, "") }
	}
	to, err := build()
	switch {
	case errors.Is(err, rest.ErrNotInCluster):
		return nil, errors.New("nothing to read Services from: want --kubeconfig FILE, --master ADDRESS, --manifests PATH, or to run as a pod in a cluster")
	case err != nil && file != "":
		return nil, err // err names the file
	case err != nil:
		return nil, fmt.Errorf("find the API server from within a pod: %w; want the token of a service account mounted there (automountServiceAccountToken), or --kubeconfig FILE", err)
	}
	to.QPS, to.Burst = o.Connection.QPS, int(o.Connection.Burst)
	to.ContentType = o.Connection.ContentType
	to.AcceptContentTypes = o.Connection.AcceptContentTypes
	to.UserAgent = o.UserAgent
	to.Wrap(func(next http.RoundTripper) http.RoundTripper { return stayer{next} })
	return to, nil
}

// stayer refuses redirects, of which the API server sends none here: each request has the token. It
// implements http.RoundTripper and utilnet.RoundTripperWrapper.
type stayer struct{ http.RoundTripper }

var _ utilnet.RoundTripperWrapper = stayer{}

func (s stayer) RoundTrip(q *http.Request) (*http.Response, error) {
	answer, err := s.RoundTripper.RoundTrip(q)
	if err != nil || answer.StatusCode/100 != 3 {
		return answer, err
	}
	_ = answer.Body.Close()
	return nil, fmt.Errorf("HTTP status %d, a redirect to %q: want the address of the API server itself", answer.StatusCode, answer.Header.Get("Location"))
}

func (s stayer) WrappedRoundTripper() http.RoundTripper { return s.RoundTripper }

// CountRequests counts this process's requests in m, for which client-go takes one registration.
func CountRequests(m *metrics.Metrics) {
	c := m.Client()
	clientmetrics.Register(clientmetrics.RegisterOpts{
		RequestResult: c.Requests, RequestRetry: c.Retries,
		RequestLatency: c.Duration, RateLimiterLatency: c.RateLimiter, ResolverLatency: c.Resolver,
		RequestSize: c.RequestSize, ResponseSize: c.ResponseSize,
	})
}

// Outages logs each sort of failure to read the API server when it first appears, and then the
// number of repetitions at growing intervals: a dozen lines in an hour.
type Outages struct {
	now    func() time.Time
	remedy func(error) string

	mu      sync.Mutex
	log     klog.Logger
	failing map[string]bool // kinds
	since   time.Time       // start of the outage: failing has not been empty since
	logged  bool            // a failure of the outage is in the log
	reasons map[string]*failure
}

// failure is a sort of failure, whose errors differ only in numbers and in the object.
type failure struct {
	last, logged time.Time
	pause        time.Duration
	repeats      int
}

// forgetAfter is how long a sort is remembered, and the longest interval between its lines.
const forgetAfter = 15 * time.Minute

// firstPause is the first interval between log lines of a lasting failure.
const firstPause = time.Minute

// NewOutages returns Outages that logs to log. remedy names the remedy for an error, or "".
func NewOutages(log klog.Logger, remedy func(error) string) *Outages {
	return &Outages{log: log, now: time.Now, remedy: remedy, failing: map[string]bool{}, reasons: map[string]*failure{}}
}

// SetLog logs to another log from now on, as the server in it is another one.
func (o *Outages) SetLog(log klog.Logger) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.log = log
}

// RecordError records a failure to read.
func (o *Outages) RecordError(err error) {
	read, ok := errors.AsType[*source.ReadError](err)
	if !ok {
		read = &source.ReadError{Err: err}
	}
	now := o.now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failing) == 0 && !read.Optional {
		o.since = now
	}
	if delete(o.failing, read.Kind); !read.Optional {
		o.failing[read.Kind] = true
	}
	name := reasonOf(read)
	s := o.reasons[name]
	if s == nil || now.Sub(s.last) > forgetAfter {
		s = &failure{}
		o.reasons[name] = s
	}
	s.last = now
	s.repeats++
	if !s.logged.IsZero() && now.Sub(s.logged) < s.pause {
		return
	}
	o.logFailure(read, s)
	s.logged, s.repeats, s.pause = now, 0, min(max(2*s.pause, firstPause), forgetAfter)
}

func (o *Outages) logFailure(read *source.ReadError, s *failure) {
	if read.Optional {
		if s.logged.IsZero() {
			o.log.Info("Going on without what the API server does not have or does not show", "kind", read.Kind, "reason", read.Err.Error())
		}
		return
	}
	args := []any{"kind", read.Kind}
	if r := o.remedy(read.Err); r != "" {
		args = append(args, "remedy", r)
	}
	if !s.logged.IsZero() {
		args = append(args, "repeated", s.repeats, "failingFor", o.now().Sub(o.since).Round(time.Second))
	}
	o.log.Error(read.Err, "The API server cannot be read; what is programmed stays in force", args...)
	o.logged = true
}

// Recovered records that a kind can be read.
func (o *Outages) Recovered(kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.failing[kind] {
		return
	}
	delete(o.failing, kind)
	if len(o.failing) == 0 && o.logged {
		o.log.Info("The API server can be read again", "failedFor", o.now().Sub(o.since).Round(time.Millisecond))
		o.logged = false
	}
}

// reasonOf returns the sort of a failure, without kind and numbers, such as ports, of a request.
func reasonOf(e *source.ReadError) string {
	if e.Optional {
		return e.Kind
	}
	if reason := apierrors.ReasonForError(e.Err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	text := e.Err.Error()
	if i := strings.LastIndex(text, "\": "); i >= 0 { // after the URL
		text = text[i:]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, strings.ReplaceAll(text, e.Kind, ""))
}

// Remedy names, for a failure to read the API server, its usual cause and where to correct
// it. It returns nothing for an unknown failure.
func (o *Options) Remedy(err error) string {
	from, server := "the service account of the pod", "KUBERNETES_SERVICE_HOST"
	if file := o.Connection.Kubeconfig; file != "" {
		from, server = "kubeconfig "+file, "cluster.server in kubeconfig "+file
	}
	if o.Master != "" {
		server = "--master"
	}
	return remedy(err, from, server)
}

func remedy(err error, from, server string) string {
	if text := certificateRemedy(err, from, server); text != "" {
		return text
	}
	var unknown *net.DNSError
	var socket *net.OpError
	switch {
	case errors.As(err, &socket) && socket.Op == "proxyconnect":
		return "the request went to the proxy that HTTPS_PROXY or HTTP_PROXY names: check these, and let NO_PROXY name the API server if it needs no proxy"
	case apierrors.IsBadRequest(err):
		return fmt.Sprintf("it does not understand the request, like an HTTPS server that gets HTTP: check that %s begins with https://", server)
	case apierrors.IsUnauthorized(err):
		return fmt.Sprintf("the credentials in %s are unknown or expired: renew the user's token or client certificate", from)
	case apierrors.IsForbidden(err):
		return "the account lacks rights: bind it to a ClusterRole that may list and watch this kind, such as system:node-proxier"
	case errors.As(err, &unknown):
		return fmt.Sprintf("the host's name cannot be resolved: check %s", server)
	case isRefused(err):
		return fmt.Sprintf("nobody listens there: check %s, and that the API server runs", server)
	case isForeign(err):
		return fmt.Sprintf("this is the answer of a proxy or another server, and of no API server: check %s", server)
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the server does not know this kind, so it is no API server, or older than Kubernetes 1.21: check %s", server)
	case errors.Is(err, source.ErrNoAnswer), errors.Is(err, source.ErrCutOff):
		return fmt.Sprintf("check %s, that its name is resolved here, and that it speaks TLS; a firewall or proxy on the way may drop or end connections", server)
	}
	return ""
}

// certificateRemedy covers the certificates of both sides.
func certificateRemedy(err error, from, server string) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return fmt.Sprintf("the API server's certificate is of another authority: set cluster.certificate-authority in %s to the cluster's", from)
	case errors.As(err, &name):
		return fmt.Sprintf("the API server's certificate is for other names: check %s, or set cluster.tls-server-name in %s", server, from)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the API server's certificate is not valid now: renew it, or set this node's clock"
	case strings.Contains(err.Error(), "remote error: tls: ") && strings.Contains(err.Error(), "certificate"):
		return fmt.Sprintf("the API server refuses the client certificate in %s: renew it", from)
	}
	return ""
}

// isForeign reports an answer in no format of the API, such as HTML, for which the client has one
// type of several: https://github.com/kubernetes/client-go/blob/master/rest/request.go
func isForeign(err error) bool {
	var format runtime.NegotiateError
	return errors.As(err, &format) || strings.Contains(err.Error(), "serializer for ")
}

// isRefused reports that nobody listens at an address. Windows has a number of its own for
// that, WSAECONNREFUSED:
// https://learn.microsoft.com/en-us/windows/win32/winsock/windows-sockets-error-codes-2
func isRefused(err error) bool {
	const wsaConnRefused = syscall.Errno(10061)
	return utilnet.IsConnectionRefused(err) || errors.Is(err, wsaConnRefused)
}
