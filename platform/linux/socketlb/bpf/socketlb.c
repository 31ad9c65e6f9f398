// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0
//
// Gives TCP sockets their endpoint at connect(2). Only user space writes the
// tables, through mmap; the programs read them. A program that is not sure
// returns without a change, and the packets of the connection meet the rules.
//
// Helpers used, and the first kernel that lets these programs call them:
// bpf_get_netns_cookie and bpf_get_current_ancestor_cgroup_id 5.7, see
// https://git.kernel.org/linus/f318903c0bf4 and 0f09abd105da;
// getpeername hooks 5.8, see 1b66d253610c; BPF_F_MMAPABLE 5.5, see fc9702273e2e.

#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// BUCKET is the number of entries in a bucket of a table. A frontend is in one of the two
// buckets that its hash names. The entries of a bucket fill in order. It equals bucket in
// table.go.
#define BUCKET 8

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

// scope says whose sockets are taken: those in the network namespace of the node, and
// those of processes that are in the cgroup of a container of a pod, or directly in one
// below it. That is where crun, an init system and the entrypoint of a Docker in the
// container have the processes of the container itself: in "container", "init.scope" and
// "init". A process further below may be of another cluster inside the pod: engines name
// a parent for their containers, as in docker/ID.
struct scope {
	__u64 netns;      // cookie of the network namespace
	__u64 owner;      // which of the proxies in that namespace
	__u64 pods;       // id of the cgroup of all pods, 0 to take no pod
	__u64 nested[2];  // ids of cgroups below pods that hold cgroups of pods
	__u64 mask;       // of the table: its number of entries, less one
	__u64 program;    // which program belongs to these maps
	__u64 seed;       // of the hash, so that nobody can choose addresses for a bucket
};

// A list word has the index of the first slot of a list in its upper half, and
// the number of slots in its lower one. It is written with one store. Slots that a
// list word names never change.

struct frontend4 {
	__u64 key; // address << 16 | port, both as on the wire; 0 where there is none
	__u64 list;
};

struct frontend6 {
	__u64 addr[2];
	__u64 port; // 0 where there is none
	__u64 list;
};

// A slot of IPv4 is like a key.
struct slot6 {
	__u64 addr[2];
	__u64 port;
};

// What getpeername says, and of which endpoint.
struct socket4 {
	__u64 frontend, endpoint;
};

struct socket6 {
	__u64 frontend[3], endpoint[3];
};

// The storage of a socket costs more than all the rest of these programs. So connect
// notes the names of the sockets that it took last, and the first getpeername
// moves them into the storage. The cookie of a socket names the set of places that it
// may have, and the places of a set are used in turn. The kernel gives cookies to each
// processor in runs of 4096, see include/linux/cookie.h. So sockets of several processors
// come to the same set soon after one another, and one place would often be used again
// too early.
//
// Two processors may write the same place at once, and a processor may see the words
// of another one in any order. A sum over all words of a place says whether they belong
// together.
#define RECENT_SETS 8192
#define RECENT_PLACES 8

struct recent4 {
	__u64 cookies[RECENT_PLACES]; // of the sockets; 0 while names are written
	__u64 sums[RECENT_PLACES];
	__u64 next;                   // the place that is used next
	struct socket4 names[RECENT_PLACES];
};

struct recent6 {
	__u64 cookies[RECENT_PLACES];
	__u64 sums[RECENT_PLACES];
	__u64 next;
	struct socket6 names[RECENT_PLACES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct scope);
} scope SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct frontend4);
} frontends4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct frontend6);
} frontends6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} slots4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct slot6);
} slots6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket4);
} sockets4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket6);
} sockets6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RECENT_SETS);
	__type(key, __u32);
	__type(value, struct recent4);
} recent4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, RECENT_SETS);
	__type(key, __u32);
	__type(value, struct recent6);
} recent6 SEC(".maps");

// taken counts connections: those of the node, and those of pods.
#define TAKEN_NODE 0
#define TAKEN_PODS 1

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} taken SEC(".maps");

static __always_inline struct scope *get_scope(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&scope, &first);
}

// MAX_LEVEL is how far below the root of all cgroups the one of all pods may be.
#define MAX_LEVEL 12

#define NOT_OURS 2

// whose tells the sockets of the node and of its pods from those of containers in
// containers, and returns the place of taken that counts them. Levels count from the root of all cgroups, which a cgroup namespace hides
// from user space. So the level of pods is found here. It is 1 on most nodes.
static __always_inline __u32 whose(struct bpf_sock_addr *ctx, struct scope *s)
{
	__u64 pods, id;
	int level;

	if (bpf_get_netns_cookie(ctx) == s->netns)
		return TAKEN_NODE;
	pods = READ_ONCE(s->pods);
	if (!pods)
		return NOT_OURS;
	for (level = 1; level <= MAX_LEVEL; level++) {
		id = bpf_get_current_ancestor_cgroup_id(level);
		if (id == pods)
			break;
		if (!id)
			return NOT_OURS;
	}
	if (level > MAX_LEVEL)
		return NOT_OURS;
	id = bpf_get_current_ancestor_cgroup_id(level + 1);
	level += 2;
	if (id == s->nested[0] || id == s->nested[1])
		level++;
	if (!bpf_get_current_ancestor_cgroup_id(level) || bpf_get_current_ancestor_cgroup_id(level + 2))
		return NOT_OURS;
	return TAKEN_PODS;
}

// is_bound reports whether the program chose a source itself: an address, a port or a
// device. The rules may give such a connection another one, which connect cannot.
static __always_inline int is_bound4(struct bpf_sock *sk)
{
	return sk->src_ip4 || sk->src_port || sk->bound_dev_if;
}

static __always_inline int is_bound6(struct bpf_sock *sk)
{
	return sk->src_ip6[0] || sk->src_ip6[1] || sk->src_ip6[2] || sk->src_ip6[3] || sk->src_port || sk->bound_dev_if;
}

static __always_inline void count(__u32 who)
{
	__u64 *n = bpf_map_lookup_elem(&taken, &who);

	if (n)
		(*n)++;
}

// hash equals hash in table.go.
static __always_inline __u64 hash(__u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdULL;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ULL;
	return x ^ x >> 33;
}

// choose returns the index of a slot in a list that is not empty.
static __always_inline __u32 choose(__u64 list)
{
	return (list >> 32) + (__u32)((__u64)bpf_get_prandom_u32() * (__u32)list >> 32);
}

// search4 looks for key in a bucket.
static __always_inline __u64 search4(__u32 bucket, __u64 key)
{
	for (int i = 0; i < BUCKET; i++) {
		__u32 n = bucket + i;
		struct frontend4 *f = bpf_map_lookup_elem(&frontends4, &n);
		__u64 k;

		if (!f)
			return 0;
		k = READ_ONCE(f->key);
		if (k == key)
			return READ_ONCE(f->list);
		if (!k)
			return 0;
	}
	return 0;
}

// find4 returns the list of key, 0 if there is none.
static __always_inline __u64 find4(struct scope *s, __u64 key)
{
	__u64 h = hash(key ^ s->seed);
	__u64 list = search4(h & s->mask & -BUCKET, key);

	return list ?: search4(h >> 32 & s->mask & -BUCKET, key);
}

// place_of returns the place of a socket in its set, RECENT_PLACES if it has none.
static __always_inline __u32 place_of(__u64 *cookies, __u64 cookie)
{
	for (__u32 i = 0; i < RECENT_PLACES; i++)
		if (READ_ONCE(cookies[i]) == cookie)
			return i;
	return RECENT_PLACES;
}

static __always_inline void forget(__u64 *cookies, __u64 cookie)
{
	for (__u32 i = 0; i < RECENT_PLACES; i++)
		if (READ_ONCE(cookies[i]) == cookie)
			WRITE_ONCE(cookies[i], 0);
}

// sum4 returns the sum of a place.
static __always_inline __u64 sum4(__u64 cookie, __u64 frontend, __u64 endpoint)
{
	return cookie ^ frontend ^ endpoint << 1;
}

static __always_inline __u64 sum6(__u64 cookie, const struct socket6 *s)
{
	return cookie ^ s->frontend[0] ^ s->frontend[1] ^ s->frontend[2] ^
	       (s->endpoint[0] ^ s->endpoint[1] ^ s->endpoint[2]) << 1;
}

// next_place returns the place that was used longest ago.
static __always_inline __u32 next_place(__u64 *next)
{
	__u32 i = READ_ONCE(*next) % RECENT_PLACES;

	WRITE_ONCE(*next, i + 1);
	return i;
}

static __always_inline struct recent4 *recent4_of(__u64 cookie)
{
	__u32 n = cookie % RECENT_SETS;

	return bpf_map_lookup_elem(&recent4, &n);
}

// take4 returns the endpoint for a socket that connects to key, 0 to leave it alone.
static __always_inline __u64 take4(struct bpf_sock_addr *ctx, struct recent4 *r, __u64 cookie, __u64 key)
{
	struct scope *s = get_scope();
	__u64 list, *slot, endpoint;
	__u32 who, n, i;

	if (!s)
		return 0;
	list = find4(s, key);
	if (!(__u32)list)
		return 0;
	who = whose(ctx, s);
	if (who == NOT_OURS)
		return 0;
	n = choose(list);
	slot = bpf_map_lookup_elem(&slots4, &n);
	if (!slot)
		return 0;
	endpoint = *slot;
	i = next_place(&r->next);
	WRITE_ONCE(r->cookies[i], 0);
	WRITE_ONCE(r->names[i].frontend, key);
	WRITE_ONCE(r->names[i].endpoint, endpoint);
	WRITE_ONCE(r->sums[i], sum4(cookie, key, endpoint));
	WRITE_ONCE(r->cookies[i], cookie);
	count(who);
	return endpoint;
}

// forget4 forgets what an earlier connect of this socket noted.
static __always_inline void forget4(struct bpf_sock *sk, struct recent4 *r, __u64 cookie)
{
	forget(r->cookies, cookie);
	if (bpf_sk_storage_get(&sockets4, sk, 0, 0))
		bpf_sk_storage_delete(&sockets4, sk);
}

// connect4_to is for both sorts of sockets that can connect over IPv4. addr is 0 if
// this one connects over IPv6.
static __always_inline __u64 connect4_to(struct bpf_sock_addr *ctx, __u64 addr, int bound)
{
	struct bpf_sock *sk = ctx->sk;
	struct recent4 *r;
	__u64 cookie;

	if (!sk)
		return 0;
	cookie = bpf_get_socket_cookie(ctx);
	r = recent4_of(cookie);
	if (!r)
		return 0;
	forget4(sk, r, cookie);
	if (bound || !addr)
		return 0;
	return take4(ctx, r, cookie, addr << 16 | (__u16)ctx->user_port);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	__u64 endpoint;

	if (ctx->protocol != IPPROTO_TCP || !sk)
		return 1;
	endpoint = connect4_to(ctx, ctx->user_ip4, is_bound4(sk));
	if (endpoint) {
		ctx->user_ip4 = endpoint >> 16;
		ctx->user_port = (__u16)endpoint;
	}
	return 1;
}

static __always_inline int is_mapped(struct bpf_sock_addr *ctx)
{
	return !ctx->user_ip6[0] && !ctx->user_ip6[1] && ctx->user_ip6[2] == bpf_htonl(0xffff);
}

// An IPv6 socket connects over IPv4 by an IPv4-mapped address.
SEC("cgroup/connect6")
int connect4_mapped(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	__u64 endpoint;

	if (ctx->protocol != IPPROTO_TCP || !sk)
		return 1;
	endpoint = connect4_to(ctx, is_mapped(ctx) ? ctx->user_ip6[3] : 0, is_bound6(sk));
	if (endpoint) {
		ctx->user_ip6[3] = endpoint >> 16;
		ctx->user_port = (__u16)endpoint;
	}
	return 1;
}

// dialled4 returns the frontend that a socket with this peer dialled, 0 for none.
static __always_inline __u64 dialled4(struct bpf_sock_addr *ctx, __u64 addr)
{
	struct bpf_sock *sk = ctx->sk;
	struct socket4 *names, fresh;
	struct recent4 *r;
	__u32 i;
	__u64 cookie, peer = addr << 16 | (__u16)ctx->user_port;

	if (ctx->protocol != IPPROTO_TCP || !sk)
		return 0;
	names = bpf_sk_storage_get(&sockets4, sk, 0, 0);
	if (names)
		return names->endpoint == peer ? names->frontend : 0;
	cookie = bpf_get_socket_cookie(ctx);
	r = recent4_of(cookie);
	if (!r)
		return 0;
	i = place_of(r->cookies, cookie);
	if (i >= RECENT_PLACES)
		return 0;
	fresh.frontend = READ_ONCE(r->names[i].frontend);
	fresh.endpoint = READ_ONCE(r->names[i].endpoint);
	if (fresh.endpoint != peer || READ_ONCE(r->sums[i]) != sum4(cookie, fresh.frontend, fresh.endpoint))
		return 0;
	bpf_sk_storage_get(&sockets4, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	return fresh.frontend;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	__u64 frontend = dialled4(ctx, ctx->user_ip4);

	if (frontend) {
		ctx->user_ip4 = frontend >> 16;
		ctx->user_port = (__u16)frontend;
	}
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername4_mapped(struct bpf_sock_addr *ctx)
{
	__u64 frontend;

	if (!is_mapped(ctx))
		return 1;
	frontend = dialled4(ctx, ctx->user_ip6[3]);
	if (frontend) {
		ctx->user_ip6[3] = frontend >> 16;
		ctx->user_port = (__u16)frontend;
	}
	return 1;
}

struct name6 {
	__u64 addr[2], port;
};

static __always_inline struct name6 name6(struct bpf_sock_addr *ctx)
{
	return (struct name6){
		{ (__u64)ctx->user_ip6[1] << 32 | ctx->user_ip6[0], (__u64)ctx->user_ip6[3] << 32 | ctx->user_ip6[2] },
		(__u16)ctx->user_port,
	};
}

static __always_inline void set_name6(struct bpf_sock_addr *ctx, __u64 high, __u64 low, __u64 port)
{
	ctx->user_ip6[0] = high;
	ctx->user_ip6[1] = high >> 32;
	ctx->user_ip6[2] = low;
	ctx->user_ip6[3] = low >> 32;
	ctx->user_port = (__u16)port;
}

static __always_inline __u64 search6(__u32 bucket, struct name6 *to)
{
	for (int i = 0; i < BUCKET; i++) {
		__u32 n = bucket + i;
		struct frontend6 *f = bpf_map_lookup_elem(&frontends6, &n);
		__u64 port;

		if (!f)
			return 0;
		port = READ_ONCE(f->port);
		if (port == to->port && f->addr[0] == to->addr[0] && f->addr[1] == to->addr[1])
			return READ_ONCE(f->list);
		if (!port)
			return 0;
	}
	return 0;
}

static __always_inline __u64 find6(struct scope *s, struct name6 *to)
{
	__u64 h = hash(to->addr[0] ^ hash(to->addr[1] ^ hash(to->port ^ s->seed)));
	__u64 list = search6(h & s->mask & -BUCKET, to);

	return list ?: search6(h >> 32 & s->mask & -BUCKET, to);
}

static __always_inline struct recent6 *recent6_of(__u64 cookie)
{
	__u32 n = cookie % RECENT_SETS;

	return bpf_map_lookup_elem(&recent6, &n);
}

// take6 returns the endpoint for a socket that connects to a name, 0 to leave it alone.
static __always_inline struct slot6 *take6(struct bpf_sock_addr *ctx, struct recent6 *r, __u64 cookie, struct name6 *to)
{
	struct scope *s = get_scope();
	struct socket6 names;
	struct slot6 *slot;
	__u64 list;
	__u32 who, n, i;

	if (!s)
		return 0;
	list = find6(s, to);
	if (!(__u32)list)
		return 0;
	who = whose(ctx, s);
	if (who == NOT_OURS)
		return 0;
	n = choose(list);
	slot = bpf_map_lookup_elem(&slots6, &n);
	if (!slot)
		return 0;
	names = (struct socket6){
		{ to->addr[0], to->addr[1], to->port },
		{ slot->addr[0], slot->addr[1], slot->port },
	};
	i = next_place(&r->next);
	WRITE_ONCE(r->cookies[i], 0);
	for (n = 0; n < 3; n++) {
		WRITE_ONCE(r->names[i].frontend[n], names.frontend[n]);
		WRITE_ONCE(r->names[i].endpoint[n], names.endpoint[n]);
	}
	WRITE_ONCE(r->sums[i], sum6(cookie, &names));
	WRITE_ONCE(r->cookies[i], cookie);
	count(who);
	return slot;
}

static __always_inline void forget6(struct bpf_sock *sk, struct recent6 *r, __u64 cookie)
{
	forget(r->cookies, cookie);
	if (bpf_sk_storage_get(&sockets6, sk, 0, 0))
		bpf_sk_storage_delete(&sockets6, sk);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct recent6 *r;
	struct slot6 *slot;
	struct name6 to;
	__u64 cookie;

	if (ctx->protocol != IPPROTO_TCP || !sk)
		return 1;
	cookie = bpf_get_socket_cookie(ctx);
	r = recent6_of(cookie);
	if (!r)
		return 1;
	forget6(sk, r, cookie);
	if (is_bound6(sk))
		return 1;
	to = name6(ctx);
	slot = take6(ctx, r, cookie, &to);
	if (slot)
		set_name6(ctx, slot->addr[0], slot->addr[1], slot->port);
	return 1;
}

static __always_inline int is_named6(struct socket6 *names, struct name6 *peer)
{
	return names->endpoint[0] == peer->addr[0] && names->endpoint[1] == peer->addr[1] && names->endpoint[2] == peer->port;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct socket6 *names, fresh;
	struct recent6 *r;
	struct name6 peer;
	__u64 cookie;
	__u32 i;

	if (ctx->protocol != IPPROTO_TCP || !sk)
		return 1;
	peer = name6(ctx);
	names = bpf_sk_storage_get(&sockets6, sk, 0, 0);
	if (names) {
		if (is_named6(names, &peer))
			set_name6(ctx, names->frontend[0], names->frontend[1], names->frontend[2]);
		return 1;
	}
	cookie = bpf_get_socket_cookie(ctx);
	r = recent6_of(cookie);
	if (!r)
		return 1;
	i = place_of(r->cookies, cookie);
	if (i >= RECENT_PLACES)
		return 1;
	fresh = r->names[i];
	if (!is_named6(&fresh, &peer) || READ_ONCE(r->sums[i]) != sum6(cookie, &fresh))
		return 1;
	bpf_sk_storage_get(&sockets6, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	set_name6(ctx, fresh.frontend[0], fresh.frontend[1], fresh.frontend[2]);
	return 1;
}

char _license[] SEC("license") = "Apache-2.0";
