/* amqp10.c - cheap load generator for AMQP 1.0 brokers; bench/links.py builds and runs it.
 *
 * One epoll loop, one socket per producer and consumer, frames prebuilt and patched. The queues
 * must exist: QUEUE, or QUEUE-0, QUEUE-1, ... with --queues above 1; connection i uses number
 * i mod queues; --address-prefix is what the broker wants before the name. Unsettled publishes by the credit the broker grants, settled in ranges; consumers
 * grant --credit and renew it at half.
 *
 * Body: u64 producer<<48|seq, u64 CLOCK_MONOTONIC ns, padding: loss, duplicates, order, latency.
 * Prints one JSON object. Exit 1: loss or stall; 2: the broker or the arguments are wrong.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;

enum { BOTH, PUBDRAIN };
static struct {
    int mode, producers, consumers, queues, size, durable, credit, ack_every /* 0: pre-settled */,
        port, timeout, pids[64], npids;
    u64 messages; double rate; const char *queue, *user, *pass, *prefix;
} o = { .mode = BOTH, .producers = 1, .consumers = 1, .queues = 1, .size = 16, .credit = 1000, .ack_every = 1,
        .port = 5672, .timeout = 30, .messages = 100000, .queue = "bench", .user = "guest", .pass = "guest", .prefix = "/queues/" };

static void die(const char *fmt, ...) {
    va_list ap; va_start(ap, fmt); fprintf(stderr, "amqp10: "); vfprintf(stderr, fmt, ap);
    fputc('\n', stderr); va_end(ap); exit(2);
}
static u64 now_ns(void) {
    struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static inline void p16(u8 *p, u16 v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void p32(u8 *p, u32 v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline u16 g16(const u8 *p) { u16 v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline u32 g32(const u8 *p) { u32 v; memcpy(&v, p, 4); return __builtin_bswap32(v); }

#include "measure.h"
static hist latency, confirm_latency;

/* ------------------------------------------------------------ connections */
#define RCAP (1 << 20)
#define WCAP (1 << 18)
typedef struct {
    int fd, id, consumer, writable; u8 *rb, *wb; size_t rn, ro, wn, wo; char address[300];
    u32 credit, window, next_id, delivery_count, unacked, first_unacked, last_id;
    u64 todo, sent, confirmed, received; u64 *ts; u8 *frame; size_t frame_len, id_at, tag_at, body_at;
    double t_next, t_step;
} conn;
static conn *P, *C;
static u8 *seen; static u64 per, uniq, dups, reordered, refused, last_ns; static u64 *last_seq;

static void send_all(conn *c, const void *p, size_t n) {
    for (const u8 *b = p; n;) { ssize_t k = send(c->fd, b, n, MSG_NOSIGNAL); if (k <= 0) die("send: %s", strerror(errno)); b += k; n -= k; }
}
static void fill(conn *c) {
    if (c->ro) { memmove(c->rb, c->rb + c->ro, c->rn - c->ro); c->rn -= c->ro; c->ro = 0; }
    ssize_t k = recv(c->fd, c->rb + c->rn, RCAP - c->rn, 0);
    if (k <= 0) die("recv: %s", k ? strerror(errno) : "closed by the broker");
    c->rn += k;
}
static u8 *blocking_frame(conn *c, u32 *size) {
    while (c->rn - c->ro < 4 || c->rn - c->ro < g32(c->rb + c->ro)) fill(c);
    u8 *f = c->rb + c->ro; *size = g32(f); c->ro += *size; return f;
}

/* ------------------------------------------------------------ encoding: into b, returns the end */
static u8 *sym(u8 *b, u8 code, const char *s) { b[0] = code; b[1] = strlen(s); memcpy(b + 2, s, b[1]); return b + 2 + b[1]; }
static u8 *uint_(u8 *b, u32 v) { *b++ = 0x70; p32(b, v); return b + 4; }
static u8 *open_list(u8 *b, u8 code) { b[0] = 0; b[1] = 0x53; b[2] = code; b[3] = 0xd0; return b + 12; }
static void close_list(u8 *b, u8 *end, u32 count) { p32(b + 4, end - b - 8); p32(b + 8, count); }
static u8 *open_frame(u8 *b, u8 type) { b[4] = 2; b[5] = type; b[6] = b[7] = 0; return b + 8; }
static void close_frame(u8 *b, u8 *end) { p32(b, end - b); }

/* ------------------------------------------------------------ decoding */
static const u8 *skip(const u8 *p) {          /* behind one value */
    u8 k = *p++;
    if (k == 0) { p = skip(p); return skip(p); }
    switch (k >> 4) {
    case 4: return p; case 5: return p + 1; case 6: return p + 2; case 7: return p + 4; case 8: return p + 8; case 9: return p + 16;
    case 0xa: case 0xc: case 0xe: return p + 1 + p[0];
    case 0xb: case 0xd: case 0xf: return p + 4 + g32(p);
    }
    die("constructor 0x%02x", k); return p;
}
static u32 number(const u8 *p, u32 absent) {  /* uint or ulong, small or not */
    switch (*p) { case 0x40: return absent; case 0x43: case 0x44: return 0; case 0x52: case 0x53: return p[1]; case 0x70: return g32(p + 1); case 0x80: return g32(p + 5); }
    die("number of constructor 0x%02x", *p); return 0;
}
static const u8 *performative(const u8 *f, u8 *code, u32 *count, const u8 **end) {
    const u8 *p = f + f[4] * 4;
    if (p[0] != 0) die("no descriptor");
    *code = number(p + 1, 0); p = skip(p + 1);
    if (*p == 0x45) { *count = 0; *end = p + 1; return p + 1; }
    if (*p == 0xc0) { *count = p[2]; *end = p + 2 + p[1]; return p + 3; }
    if (*p == 0xd0) { *count = g32(p + 5); *end = p + 5 + g32(p + 1); return p + 9; }
    die("performative is 0x%02x", *p); return p;
}
static const u8 *field(const u8 *p, u32 count, u32 n) {
    static const u8 null = 0x40;
    if (n >= count) return &null;
    while (n--) p = skip(p);
    return p;
}
static const u8 *expect(conn *c, u8 want, u32 *count) {
    for (;;) {
        u32 size; u8 code; const u8 *end, *f = blocking_frame(c, &size);
        if (size == (u32)f[4] * 4) continue;  /* heartbeat */
        const u8 *p = performative(f, &code, count, &end);
        if (code == want) return p;
        if (code >= 0x16 && code <= 0x18) die("refused with 0x%02x: %.*s", code, (int)(end - p), p);
    }
}

/* ------------------------------------------------------------ opening */
static void open_conn(conn *c) {
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(o.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(c->fd, (void *)&a, sizeof a)) die("connect: %s", strerror(errno));
    int one = 1; setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->rb = malloc(RCAP); c->wb = malloc(WCAP);
    u8 b[2048], *e, *l; u32 n;
    send_all(c, "AMQP\3\1\0\0", 8);
    while (c->rn < 8) fill(c);
    if (memcmp(c->rb, "AMQP\3\1\0\0", 8)) die("no SASL"); else c->ro = 8;
    l = open_frame(b, 1); e = open_list(l, 0x41); e = sym(e, 0xa3, "PLAIN");
    size_t lu = strlen(o.user), lp = strlen(o.pass);
    e[0] = 0xa0; e[1] = lu + lp + 2; e[2] = 0; memcpy(e + 3, o.user, lu); e[3 + lu] = 0; memcpy(e + 4 + lu, o.pass, lp); e += 4 + lu + lp;
    close_list(l, e, 2); close_frame(b, e); send_all(c, b, e - b);
    const u8 *p = expect(c, 0x44, &n);
    if (p[0] != 0x50 || p[1]) die("login refused");
    send_all(c, "AMQP\0\1\0\0", 8);
    while (c->rn - c->ro < 8) fill(c);
    c->ro += 8;
    l = open_frame(b, 0); e = open_list(l, 0x10); e += sprintf((char *)e + 2, "bench-%d-%d", getpid(), c->id + (c->consumer ? 1000 : 0)) + 2;
    u8 *name = l + 12; name[0] = 0xa1; name[1] = e - name - 2;
    e = sym(e, 0xa1, "127.0.0.1"); e = uint_(e, 131072); close_list(l, e, 3); close_frame(b, e); send_all(c, b, e - b);
    l = open_frame(b, 0); e = open_list(l, 0x11); *e++ = 0x40; e = uint_(e, 0); e = uint_(e, 0x7fffffff); e = uint_(e, 0x7fffffff);
    close_list(l, e, 4); close_frame(b, e); send_all(c, b, e - b);
    l = open_frame(b, 0); e = open_list(l, 0x12); e = sym(e, 0xa1, "link"); *e++ = 0x43;
    *e++ = c->consumer ? 0x41 : 0x42;         /* role: receiver is true */
    *e++ = 0x50; *e++ = !o.ack_every;         /* snd-settle-mode */
    *e++ = 0x50; *e++ = 0;
    u8 *s = e; e = open_list(s, 0x28);
    if (c->consumer) e = sym(e, 0xa1, c->address); else *e++ = 0x40;
    close_list(s, e, 1); u8 *t = e; e = open_list(t, 0x29);
    if (c->consumer) *e++ = 0x40; else e = sym(e, 0xa1, c->address);
    close_list(t, e, 1);
    u32 count = 7;
    if (!c->consumer) { *e++ = 0x40; *e++ = 0x40; *e++ = 0x43; count = 10; }
    close_list(l, e, count); close_frame(b, e); send_all(c, b, e - b);
    p = expect(c, 0x11, &n); c->window = number(field(p, n, 2), 0);
    p = expect(c, 0x12, &n);
    if (*field(p, n, c->consumer ? 5 : 6) == 0x40) { expect(c, 0x16, &n); die("link to %s refused", c->address); }
    fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK);
}
static void prebuild(conn *c) {
    u8 *b = c->frame = malloc(o.size + 128), *l = open_frame(b, 0), *e = l;
    memcpy(e, "\0\x53\x14\xc0", 4); e += 4; u8 *sz = e; e += 2; *e++ = 0x43;
    *e++ = 0x70; c->id_at = e - b; e += 4; *e++ = 0xa0; *e++ = 4; c->tag_at = e - b; e += 4; *e++ = 0x43; *e++ = o.ack_every ? 0x42 : 0x41;
    sz[0] = e - sz - 1; sz[1] = 5;
    memcpy(e, "\0\x53\x70\xc0\x02\x01", 6); e += 6; *e++ = o.durable ? 0x41 : 0x42;
    memcpy(e, "\0\x53\x75", 3); e += 3;
    if (o.size < 256) { *e++ = 0xa0; *e++ = o.size; } else { *e++ = 0xb0; p32(e, o.size); e += 4; }
    c->body_at = e - b; memset(e, 'x', o.size); e += o.size; c->frame_len = e - b; close_frame(b, e);
    c->ts = calloc(c->todo, 8);
}

/* ------------------------------------------------------------ running */
static void flush(conn *c) {
    while (c->wo < c->wn) {
        ssize_t k = send(c->fd, c->wb + c->wo, c->wn - c->wo, MSG_NOSIGNAL);
        if (k < 0) { if (errno == EAGAIN) { c->writable = 0; return; } die("send: %s", strerror(errno)); }
        c->wo += k;
    }
    c->wo = c->wn = 0;
}
static void publish(conn *c, u64 now) {
    if (c->wo == c->wn) c->wo = c->wn = 0;
    while (c->sent < c->todo && c->credit && c->window && c->wn + c->frame_len <= WCAP / 2) {
        if (o.rate > 0 && (double)now < c->t_next) break;
        u64 ts = o.rate > 0 ? (u64)c->t_next : now, v = (u64)c->id << 48 | c->sent;
        u8 *b = c->wb + c->wn; memcpy(b, c->frame, c->frame_len); c->wn += c->frame_len;
        p32(b + c->id_at, c->sent); p32(b + c->tag_at, c->sent);
        memcpy(b + c->body_at, &v, 8); memcpy(b + c->body_at + 8, &ts, 8);
        c->ts[c->sent++] = ts; c->credit--; c->window--; c->delivery_count++; c->t_next += c->t_step;
    }
}
static void grant(conn *c) {
    u8 *b = c->wb + c->wn, *l = open_frame(b, 0), *e = open_list(l, 0x13);
    e = uint_(e, c->next_id); e = uint_(e, 0x7fffffff); e = uint_(e, 0); e = uint_(e, 0x7fffffff); *e++ = 0x43;
    e = uint_(e, c->delivery_count); e = uint_(e, o.credit); close_list(l, e, 7); close_frame(b, e); c->wn = e - c->wb; c->credit = o.credit;
}
static void accept_upto(conn *c, u32 last) {
    u8 *b = c->wb + c->wn, *l = open_frame(b, 0), *e = open_list(l, 0x15);
    *e++ = 0x41; e = uint_(e, c->first_unacked); e = uint_(e, last); *e++ = 0x41; memcpy(e, "\0\x53\x24\x45", 4); e += 4;
    close_list(l, e, 5); close_frame(b, e); c->wn = e - c->wb; c->unacked = 0;
}
static void got(conn *c, const u8 *p, const u8 *end, u64 now) {
    while (p < end) {                         /* sections up to the first data section */
        u8 code = number(p + 1, 0); const u8 *v = skip(p + 1);
        if (code != 0x75) { p = skip(v); continue; }
        p = v + (*v == 0xa0 ? 2 : 5); break;
    }
    u64 v, t; memcpy(&v, p, 8); memcpy(&t, p + 8, 8);
    u32 who = v >> 48; u64 seq = v & 0xffffffffffffull;
    if (who >= (u32)o.producers || seq >= per) die("foreign message");
    u64 bit = who * per + seq;
    if (seen[bit >> 3] >> (bit & 7) & 1) dups++; else { seen[bit >> 3] |= 1 << (bit & 7); uniq++; hadd(&latency, now > t ? now - t : 0); }
    u64 *ls = &last_seq[c->id * o.producers + who]; if (seq + 1 < *ls) reordered++; *ls = seq + 1;
    c->received++; last_ns = now;
}
static void handle(conn *c, const u8 *f, u32 size, u64 now) {
    if (size == (u32)f[4] * 4) return;
    u8 code; u32 n; const u8 *end, *p = performative(f, &code, &n, &end);
    if (code == 0x14) {
        u32 id = number(field(p, n, 1), 0);
        got(c, end, f + size, now); c->delivery_count++; c->next_id++; c->credit--; c->last_id = id;
        if (o.ack_every) { if (!c->unacked++) c->first_unacked = id; if (c->unacked >= (u32)o.ack_every) accept_upto(c, id); }
        if (c->credit <= (u32)o.credit / 2) grant(c);
    } else if (code == 0x15) {
        u32 first = number(field(p, n, 1), 0), last = number(field(p, n, 2), first); const u8 *state = field(p, n, 4);
        if (state[0] != 0 || number(state + 1, 0) != 0x24) refused += last - first + 1;
        for (u32 i = first; i <= last; i++) { c->confirmed++; hadd(&confirm_latency, now - c->ts[i]); }
        last_ns = now;
    } else if (code == 0x13) {
        u32 next = number(field(p, n, 0), 0), window = number(field(p, n, 1), 0);
        c->window = next + window - (u32)c->sent;
        if (*field(p, n, 4) != 0x40 && !c->consumer)
            c->credit = number(field(p, n, 5), 0) + number(field(p, n, 6), 0) - c->delivery_count;
    } else if (code >= 0x16 && code <= 0x18) die("broker ended it with 0x%02x: %.*s", code, (int)(end - p), p);
}
static void parse(conn *c, u64 now) {         /* what has arrived, as far as it is whole */
    while (c->rn - c->ro >= 4) {
        u32 size = g32(c->rb + c->ro); if (c->rn - c->ro < size) break;
        if (WCAP - c->wn < 256) flush(c);
        handle(c, c->rb + c->ro, size, now); c->ro += size;
    }
    if (c->writable) flush(c);
}
static void receive(conn *c, u64 now) {
    parse(c, now);                            /* credit may have come along with the attach */
    for (;;) {
        if (c->ro) { memmove(c->rb, c->rb + c->ro, c->rn - c->ro); c->rn -= c->ro; c->ro = 0; }
        ssize_t k = recv(c->fd, c->rb + c->rn, RCAP - c->rn, 0);
        if (k == 0) die("closed by the broker");
        if (k < 0) { if (errno == EAGAIN) break; die("recv: %s", strerror(errno)); }
        c->rn += k; parse(c, now);
        if ((size_t)k < 65536) break;
    }
}
static int ep;
static void watch(conn *c) { struct epoll_event e = { EPOLLIN | EPOLLOUT | EPOLLET, {.ptr = c} }; c->writable = 1; epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e); }
static u64 sum_confirmed(void) { u64 s = 0; for (int i = 0; i < o.producers; i++) s += o.ack_every ? P[i].confirmed : P[i].sent; return s; }
static int run(int publishing, int consuming) {  /* until all is confirmed and received; 0: stalled */
    u64 total = per * o.producers, progress = 0, since = now_ns();
    for (;;) {
        u64 now = now_ns(), done = sum_confirmed() + uniq + dups;
        if ((!publishing || sum_confirmed() >= total) && (!consuming || uniq >= total)) return 1;
        if (done != progress) { progress = done; since = now; }
        else if (now - since > o.timeout * 1000000000ull) return 0;
        double next = 1e18;
        if (publishing) for (int i = 0; i < o.producers; i++) {
            conn *c = &P[i]; if (c->writable) { publish(c, now); flush(c); }
            if (o.rate > 0 && c->sent < c->todo && c->t_next < next) next = c->t_next;
        }
        struct epoll_event ev[64]; int ms = 100;
        if (o.rate > 0 && next < 1e18) { double d = (next - (double)now) / 1e6; ms = d <= 0 ? 0 : d < 1 ? 1 : d > 100 ? 100 : (int)d; }
        int k = epoll_wait(ep, ev, 64, ms); now = now_ns();
        for (int i = 0; i < k; i++) {
            conn *c = ev[i].data.ptr;
            if (ev[i].events & EPOLLOUT) { c->writable = 1; flush(c); }
            if (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(c, now);
        }
    }
}
int main(int argc, char **argv) {
    static struct option lo[] = {{"port",1,0,'p'},{"broker-pid",1,0,'P'},{"messages",1,0,'n'},{"size",1,0,'s'},{"durable",0,0,'d'},{"credit",1,0,'c'},
        {"ack-every",1,0,'a'},{"producers",1,0,'w'},{"consumers",1,0,'r'},{"queues",1,0,'q'},{"queue",1,0,'Q'},{"mode",1,0,'m'},{"rate",1,0,'R'},{"timeout",1,0,'t'},{"user",1,0,'u'},{"password",1,0,'k'},{"address-prefix",1,0,'x'},{0,0,0,0}};
    for (int k; (k = getopt_long(argc, argv, "", lo, NULL)) != -1;) switch (k) {
        case 'p': o.port = atoi(optarg); break; case 'P': if (o.npids < 64) o.pids[o.npids++] = atoi(optarg); break; case 'n': o.messages = atoll(optarg); break;
        case 's': o.size = atoi(optarg); break; case 'd': o.durable = 1; break; case 'c': o.credit = atoi(optarg); break;
        case 'a': o.ack_every = strcmp(optarg, "none") ? atoi(optarg) : 0; break; case 'w': o.producers = atoi(optarg); break;
        case 'r': o.consumers = atoi(optarg); break; case 'q': o.queues = atoi(optarg); break; case 'Q': o.queue = optarg; break;
        case 'm': o.mode = strcmp(optarg, "pubdrain") ? BOTH : PUBDRAIN; break; case 'R': o.rate = atof(optarg); break; case 't': o.timeout = atoi(optarg); break;
        case 'u': o.user = optarg; break; case 'k': o.pass = optarg; break; case 'x': o.prefix = optarg; break; default: return 2;
    }
    if (o.size < 16 || o.size > 100000) die("--size %d, expected 16 to 100000", o.size);
    per = o.messages / o.producers; ep = epoll_create1(0);
    P = calloc(o.producers, sizeof *P); C = calloc(o.consumers, sizeof *C);
    seen = calloc((per * o.producers >> 3) + 1, 1); last_seq = calloc(o.consumers * o.producers, 8);
    for (int i = 0; i < o.producers + o.consumers; i++) {
        conn *c = i < o.producers ? &P[i] : &C[i - o.producers];
        c->consumer = i >= o.producers; c->id = c->consumer ? i - o.producers : i;
        if (o.queues > 1) snprintf(c->address, sizeof c->address, "%s%s-%d", o.prefix, o.queue, c->id % o.queues);
        else snprintf(c->address, sizeof c->address, "%s%s", o.prefix, o.queue);
        open_conn(c);
        if (!c->consumer) { c->todo = per; prebuild(c); watch(c); receive(c, now_ns()); }
    }
    pthread_t th; sampling = o.npids > 0; reset_hwm(); if (sampling) pthread_create(&th, NULL, sampler, NULL);
    double cpu = broker_cpu(); u64 start = now_ns(); int ok = 1;
    if (o.rate > 0) for (int i = 0; i < o.producers; i++) { P[i].t_step = 1e9 * o.producers / o.rate; P[i].t_next = start + P[i].t_step * i / o.producers; }
    if (o.mode == PUBDRAIN) ok = run(1, 0);
    for (int i = 0; i < o.consumers; i++) { grant(&C[i]); watch(&C[i]); flush(&C[i]); receive(&C[i], now_ns()); }
    ok = ok && run(o.mode == BOTH, 1);
    u64 end = last_ns > start ? last_ns : now_ns();
    for (int i = 0; i < o.consumers; i++) if (C[i].unacked) { accept_upto(&C[i], C[i].last_id); flush(&C[i]); }
    struct timespec settle = {0, 300000000}; nanosleep(&settle, NULL);
    double used = broker_cpu() - cpu; if (sampling) { sampling = 0; pthread_join(th, NULL); }
    u64 total = per * o.producers; double s = (end - start) / 1e9;
    printf("{\"messages\":%lu,\"seconds\":%.3f,\"msg_per_s\":%.0f,\"broker_cpu_us_per_msg\":%.3f,\"broker_rss_peak_kb\":%ld,\"lost\":%lu,\"duplicates\":%lu,"
           "\"reordered\":%lu,\"refused\":%lu,\"latency_us\":{\"p50\":%.1f,\"p99\":%.1f},\"confirm_us\":{\"p50\":%.1f,\"p99\":%.1f},\"stalled\":%s}\n",
           total, s, total / s, used * 1e6 / total, hwm_peak, total - uniq, dups, reordered, refused,
           hq(&latency, .5), hq(&latency, .99), hq(&confirm_latency, .5), hq(&confirm_latency, .99), ok ? "false" : "true");
    return ok && uniq == total && !refused ? 0 : 1;
}
