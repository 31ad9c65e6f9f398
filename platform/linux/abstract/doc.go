// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package abstract implements lease.Transport with an abstract unix socket, by which the
// service proxies of one network namespace find each other. Like the rules, the socket
// belongs to the network namespace, whatever file systems and PIDs a container has. It
// disappears with its process (unix(7)). Package lease defines what the proxies exchange.
//
// Any process in the network namespace can take the socket's name or connect to it, so
// each side proves that it has CAP_NET_ADMIN. A proof is a socket that its maker bound to
// a name and then set SO_DEBUG on. The kernel lets only CAP_NET_ADMIN of the first user
// namespace set that option (sk_setsockopt in
// https://github.com/torvalds/linux/blob/v6.12/net/core/sock.c), which has no other effect
// there, and never lets a bound socket get another name (unix_bind in
// https://github.com/torvalds/linux/blob/v6.12/net/unix/af_unix.c). So the name is a
// statement that nobody without the capability can make or alter. A process makes such
// sockets itself and never sets the option on one that it received.
//
// The statement says: "the holder (or the client) of the connection from the address A,
// challenged with C, is me". A is the random name to which the client bound its end of the
// connection, and C is random, from the holder, made after it read A from the connection.
//   - A statement that is sent back to its maker, or passed on to a third process, names
//     another connection: two sockets that exist cannot have one name. A name has the
//     greatest length, so that no other name reads the same.
//   - A statement that is kept until the client's end is closed, when somebody else can
//     take its name, has an old C. A client finds a fresh A itself.
//   - Statements of a client and of a holder differ, so that none serves as the other.
//
// An intermediary between two proxies therefore gets statements about its own connections
// with them only from itself. Processes of the users that cannot have the capability are
// turned away when they connect (SO_PEERCRED), before they take any place.
//
// Releases whose proof is another one do not trust this one, nor the other way round:
// neither yields, both program the node with the same rules, and each says in the
// condition other-proxy that it met the other.
package abstract
