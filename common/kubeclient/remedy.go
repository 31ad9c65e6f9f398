// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"kubeproxy/common/source"
)

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

// isForeign reports that a server answered in a format that the API does not have, such as
// HTML. The client has a type for one of these errors only, see
// https://github.com/kubernetes/client-go/blob/master/rest/request.go
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
