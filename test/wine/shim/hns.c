// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0
//
// One DLL, installed as computenetwork.dll and as vmcompute.dll. It passes each
// call to the simulated HNS at $HNS_SIM_ADDR, "host:port", over TCP; the frames
// are described in test/hns/wire.go. The documents travel as they are, nothing
// here reads them. One call runs at a time, as in HNS.
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <objbase.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// HRESULTs, widened with zeros, for their reader takes the whole register.
#define API __declspec(dllexport) ULONGLONG WINAPI
#define SERVER_UNAVAILABLE 0x800706BAu // nobody is there
#define CALL_FAILED 0x800706BEu        // gone while the call ran
#define OUT_OF_MEMORY 0x8007000Eu
#define MOST (64u << 20)

static CRITICAL_SECTION lock;
static SOCKET sock = INVALID_SOCKET;
static int started;

BOOL WINAPI DllMain(HINSTANCE h, DWORD why, LPVOID r) {
    (void)h;
    (void)r;
    if (why == DLL_PROCESS_ATTACH) InitializeCriticalSection(&lock);
    return TRUE;
}

static void hang_up(void) {
    if (sock != INVALID_SOCKET) closesocket(sock);
    sock = INVALID_SOCKET;
}

static int dial(void) {
    char addr[256], *port;
    struct addrinfo hint = {0}, *found = NULL;
    BOOL one = 1;
    if (!started) {
        WSADATA d;
        if (WSAStartup(MAKEWORD(2, 2), &d)) return 0;
        started = 1;
    }
    DWORD n = GetEnvironmentVariableA("HNS_SIM_ADDR", addr, sizeof addr);
    if (!n || n >= sizeof addr || !(port = strrchr(addr, ':'))) return 0;
    *port++ = 0;
    hint.ai_family = AF_INET;
    hint.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(addr, port, &hint, &found)) return 0;
    sock = socket(found->ai_family, SOCK_STREAM, IPPROTO_TCP);
    if (sock != INVALID_SOCKET && connect(sock, found->ai_addr, (int)found->ai_addrlen)) hang_up();
    freeaddrinfo(found);
    if (sock == INVALID_SOCKET) return 0;
    setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, (char *)&one, sizeof one);
    return 1;
}

// alive says whether the connection still stands. Nothing comes unasked, so
// what can be read is its end.
static int alive(void) {
    fd_set set;
    struct timeval now = {0, 0};
    if (sock == INVALID_SOCKET) return 0;
    FD_ZERO(&set);
    FD_SET(sock, &set);
    return select(0, &set, NULL, NULL, &now) == 0;
}

static int transfer(char *p, int n, int out) {
    while (n > 0) {
        int k = out ? send(sock, p, n, 0) : recv(sock, p, n, 0);
        if (k <= 0) return 0;
        p += k;
        n -= k;
    }
    return 1;
}

// exchange returns a reply that ends with zeros, for the caller to free, or
// NULL and why. A call is never repeated: it may have been carried out.
static char *exchange(char *request, int n, unsigned *why) {
    unsigned length;
    char *reply = NULL;
    if (!alive()) {
        hang_up();
        if (!dial()) {
            *why = SERVER_UNAVAILABLE;
            return NULL;
        }
    }
    *why = CALL_FAILED;
    if (transfer(request, n, 1) && transfer((char *)&length, 4, 0) && length <= MOST && (reply = malloc(length + 4))) {
        memset(reply + length, 0, 4);
        if (transfer(reply, (int)length, 0)) return reply;
        free(reply);
    }
    hang_up();
    return NULL;
}

// wide returns text that its reader frees with CoTaskMemFree.
static PWSTR wide(const char *s) {
    int n = MultiByteToWideChar(CP_UTF8, 0, s, -1, NULL, 0);
    PWSTR w = CoTaskMemAlloc(n * sizeof(WCHAR));
    if (w) MultiByteToWideChar(CP_UTF8, 0, s, -1, w, n);
    return w;
}

typedef struct {
    const char *function;
    const GUID *id;
    void *handle;
    PCWSTR arg[3];
} Request;

static char *frame(const Request *r, int *size) {
    int n = 256, k;
    char *text, *p;
    for (int i = 0; i < 3; i++) n += r->arg[i] ? WideCharToMultiByte(CP_UTF8, 0, r->arg[i], -1, NULL, 0, NULL, NULL) : 1;
    if (!(text = malloc(n))) return NULL;
    p = text + 4 + sprintf(text + 4, "%s", r->function) + 1;
    if (r->id) {
        const unsigned char *d = r->id->Data4;
        p += sprintf(p, "%08lx-%04x-%04x-%02x%02x-%02x%02x%02x%02x%02x%02x", r->id->Data1, r->id->Data2, r->id->Data3,
                     d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]);
    }
    *p++ = 0;
    p += sprintf(p, "%llu", (unsigned long long)(ULONG_PTR)r->handle) + 1;
    for (int i = 0; i < 3; i++) {
        k = r->arg[i] ? WideCharToMultiByte(CP_UTF8, 0, r->arg[i], -1, p, (int)(text + n - p), NULL, NULL) : 0;
        if (k) p += k;
        else *p++ = 0;
    }
    *(unsigned *)text = (unsigned)(p - text - 4);
    *size = (int)(p - text);
    return text;
}

static ULONGLONG call(Request r, void **handle, PWSTR *result, PWSTR *error) {
    int n;
    unsigned why;
    char *request, *reply;
    if (handle) *handle = NULL;
    if (result) *result = NULL;
    if (error) *error = NULL;
    if (!(request = frame(&r, &n))) return OUT_OF_MEMORY;
    EnterCriticalSection(&lock);
    reply = exchange(request, n, &why);
    LeaveCriticalSection(&lock);
    free(request);
    if (!reply) return why;
    ULONGLONG code = strtoul(reply, NULL, 16) & 0xffffffffu;
    char *h = reply + strlen(reply) + 1, *out = h + strlen(h) + 1, *text = out + strlen(out) + 1;
    if (handle) *handle = (void *)(ULONG_PTR)_strtoui64(h, NULL, 10);
    if (result && *out) *result = wide(out);
    if (error && *text) *error = wide(text);
    free(reply);
    return code;
}

#define KIND(K, MANY)                                                                                             \
    API HcnEnumerate##MANY(PCWSTR q, PWSTR *o, PWSTR *e) {                                                        \
        return call((Request){"HcnEnumerate" #MANY, 0, 0, {q, 0, 0}}, 0, o, e);                                   \
    }                                                                                                             \
    API HcnOpen##K(const GUID *id, void **h, PWSTR *e) { return call((Request){"HcnOpen" #K, id, 0, {0}}, h, 0, e); } \
    API HcnModify##K(void *h, PCWSTR s, PWSTR *e) {                                                               \
        return call((Request){"HcnModify" #K, 0, h, {s, 0, 0}}, 0, 0, e);                                         \
    }                                                                                                             \
    API HcnQuery##K##Properties(void *h, PCWSTR q, PWSTR *o, PWSTR *e) {                                          \
        return call((Request){"HcnQuery" #K "Properties", 0, h, {q, 0, 0}}, 0, o, e);                             \
    }                                                                                                             \
    API HcnDelete##K(const GUID *id, PWSTR *e) { return call((Request){"HcnDelete" #K, id, 0, {0}}, 0, 0, e); }   \
    API HcnClose##K(void *h) { return call((Request){"HcnClose" #K, 0, h, {0}}, 0, 0, 0); }

#define CREATE(K)                                                              \
    API HcnCreate##K(const GUID *id, PCWSTR s, void **h, PWSTR *e) {           \
        return call((Request){"HcnCreate" #K, id, 0, {s, 0, 0}}, h, 0, e);     \
    }

KIND(Network, Networks)
KIND(Namespace, Namespaces)
KIND(LoadBalancer, LoadBalancers)
KIND(SdnRoute, SdnRoutes)
KIND(Endpoint, Endpoints)
CREATE(Network)
CREATE(Namespace)
CREATE(LoadBalancer)
CREATE(SdnRoute)

API HcnCreateEndpoint(void *network, const GUID *id, PCWSTR s, void **h, PWSTR *e) {
    return call((Request){"HcnCreateEndpoint", id, network, {s, 0, 0}}, h, 0, e);
}

API HNSCall(PCWSTR method, PCWSTR path, PCWSTR body, PWSTR *response) {
    return call((Request){"HNSCall", 0, 0, {method, path, body}}, 0, response, 0);
}
