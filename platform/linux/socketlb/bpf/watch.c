// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: MIT OR GPL-2.0-only
//
// Tells of TCP sockets that repeat their first packet, which nobody answered.
//
// All else of this project has the licence Apache-2.0, which the kernel does not count as
// compatible with its own. It lets no other program read its sockets (kernel:
// kernel/bpf/verifier.c, check_ptr_to_btf_access). So this file alone may be used under the
// MIT licence or version 2 of the GPL. It is an object of its own.
//
// The tracepoint is on no way of success: nothing runs while endpoints answer. It is on that
// of all sockets of the node. User space knows by the cookie which of them were taken.
//
// Programs of this type can be attached since 5.5, and have ring buffers since 5.8.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

// The parts of the kernel's types that are read here. Their places are those of the running
// kernel.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock_common {
	__u32 skc_daddr, skc_rcv_saddr;
	__u16 skc_dport, skc_num;
	unsigned char skc_state;
	struct in6_addr {
		union {
			__u32 u6_addr32[4];
		} in6_u;
	} skc_v6_daddr, skc_v6_rcv_saddr;
	struct atomic64 {
		__s64 counter;
	} skc_cookie;
};

struct sock {
	struct sock_common __sk_common;
};
#pragma clang attribute pop

#define SYN_SENT 2

// A repeat is a first packet that was sent again. It equals repeat in watch_linux.go.
struct repeat {
	__u64 at;     // in ns of the clock CLOCK_MONOTONIC
	__u64 cookie;
	__u32 from4, to4;
	__u32 from6[4], to6[4];
	__u16 from_port; // in the order of the host
	__u16 to_port;   // as on the wire
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} repeats SEC(".maps");

SEC("tp_btf/tcp_retransmit_skb")
int repeated(__u64 *ctx)
{
	struct sock_common *sk = &((struct sock *)ctx[0])->__sk_common;
	struct repeat r = {};

	if (sk->skc_state != SYN_SENT)
		return 0;
	r.at = bpf_ktime_get_ns();
	r.cookie = sk->skc_cookie.counter;
	r.from4 = sk->skc_rcv_saddr;
	r.to4 = sk->skc_daddr;
	for (int i = 0; i < 4; i++) {
		r.from6[i] = sk->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
		r.to6[i] = sk->skc_v6_daddr.in6_u.u6_addr32[i];
	}
	r.from_port = sk->skc_num;
	r.to_port = sk->skc_dport;
	bpf_ringbuf_output(&repeats, &r, sizeof(r), 0);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
