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
	utilnet "k8s.io/apimachinery/pkg/util/net"
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

// isRefused reports that nobody listens at an address. Windows has a number of its own for
// that, WSAECONNREFUSED:
// https://learn.microsoft.com/en-us/windows/win32/winsock/windows-sockets-error-codes-2
func isRefused(err error) bool {
	const wsaConnRefused = syscall.Errno(10061)
	return utilnet.IsConnectionRefused(err) || errors.Is(err, wsaConnRefused)
}
