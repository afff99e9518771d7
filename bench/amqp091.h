/* amqp091.h - AMQP 0-9-1: set-up, prebuilt messages, requests and their answers */

/* ------------------------------------------------------------------- AMQP */
static size_t mstart(u8 *b, u16 cls, u16 mth, u16 ch) { b[0] = 1; p16(b + 1, ch); p16(b + 7, cls); p16(b + 9, mth); return 11; }
static size_t mend(u8 *b, size_t n) { p32(b + 3, n - 7); b[n++] = 0xCE; return n; }
static size_t sstr(u8 *b, const char *s) { size_t n = strlen(s); b[0] = n; memcpy(b + 1, s, n); return n + 1; }
static const u8 *amqp_wait(conn *c, u16 cls, u16 mth) {   /* returns the arguments of the awaited method */
    for (;;) {
        while (c->rn - c->ro < 7 || c->rn - c->ro < g32(c->rb + c->ro + 3) + 8u) fill(c);
        u8 *f = c->rb + c->ro; c->ro += g32(f + 3) + 8;
        if (f[0] != 1) continue;              /* late content or heartbeat */
        u16 k = g16(f + 7), m = g16(f + 9);
        if (k == cls && m == mth) return f + 11;
        if ((k == 10 && m == 50) || (k == 20 && m == 40)) die("broker closed: %d %.*s", g16(f + 11), f[13], f + 14);
    }
}
static size_t qargs_table(u8 *b) {
    size_t n = 4;
    for (int i = 0; i < o.nqargs; i++) {
        char k[128]; const char *eq = strchr(o.qargs[i], '='); if (!eq) die("--qarg wants key=value");
        snprintf(k, sizeof k, "%.*s", (int)(eq - o.qargs[i]), o.qargs[i]); n += sstr(b + n, k);
        char *end; long v = strtol(eq + 1, &end, 10);
        if (*end == 0 && end != eq + 1) { b[n++] = 'I'; p32(b + n, v); n += 4; }
        else { b[n++] = 'S'; size_t l = strlen(eq + 1); p32(b + n, l); memcpy(b + n + 4, eq + 1, l); n += 4 + l; }
    }
    p32(b, n - 4); return n;
}
static void amqp_open(conn *c) {
    u8 b[4096]; size_t n; dial(c);
    wall(c, "AMQP\0\0\x09\x01", 8); amqp_wait(c, 10, 10);
    n = mstart(b, 10, 11, 0); p32(b + n, 0); n += 4; n += sstr(b + n, "PLAIN");
    size_t lu = strlen(o.user), lp = strlen(o.pass); p32(b + n, lu + lp + 2); n += 4;
    b[n++] = 0; memcpy(b + n, o.user, lu); n += lu; b[n++] = 0; memcpy(b + n, o.pass, lp); n += lp;
    n += sstr(b + n, "en_US"); wall(c, b, mend(b, n));
    const u8 *a = amqp_wait(c, 10, 30); u16 cm = g16(a); u32 fm = g32(a + 2);
    if (!fm || fm > 131072) fm = 131072;
    c->frame_max = fm;
    n = mstart(b, 10, 31, 0); p16(b + n, cm); p32(b + n + 2, fm); p16(b + n + 6, 0); wall(c, b, mend(b, n + 8));
    n = mstart(b, 10, 40, 0); n += sstr(b + n, o.vhost); b[n++] = 0; b[n++] = 0; wall(c, b, mend(b, n)); amqp_wait(c, 10, 41);
    n = mstart(b, 20, 10, 1); b[n++] = 0; wall(c, b, mend(b, n)); amqp_wait(c, 20, 11);
}
static u32 amqp_declare(conn *c, const char *q, int passive) {   /* returns message count */
    u8 b[4096]; size_t n = mstart(b, 50, 10, 1); p16(b + n, 0); n += 2; n += sstr(b + n, q);
    b[n++] = passive ? 1 : o.durable ? 2 : 0;
    if (passive) { p32(b + n, 0); n += 4; } else n += qargs_table(b + n);
    wall(c, b, mend(b, n)); const u8 *a = amqp_wait(c, 50, 11); return g32(a + 1 + a[0]);
}
static void amqp_delete(conn *c, const char *q) {
    u8 b[512]; size_t n = mstart(b, 50, 40, 1); p16(b + n, 0); n += 2; n += sstr(b + n, q); b[n++] = 0; wall(c, b, mend(b, n)); amqp_wait(c, 50, 41);
}
static void amqp_close(conn *c) {             /* channel.close: the broker has then seen all our acks */
    u8 b[64]; size_t n = mstart(b, 20, 40, 1); p16(b + n, 200); n += 2; n += sstr(b + n, "bye"); p32(b + n, 0); n += 4;
    wall(c, b, mend(b, n)); amqp_wait(c, 20, 41);
    n = mstart(b, 10, 50, 0); p16(b + n, 200); n += 2; n += sstr(b + n, "bye"); p32(b + n, 0); n += 4;
    wall(c, b, mend(b, n)); amqp_wait(c, 10, 51); close(c->fd); c->fd = -1;
}
static void amqp_exchange(conn *c, const char *type) {
    u8 b[512]; size_t n = mstart(b, 40, 10, 1); p16(b + n, 0); n += 2; n += sstr(b + n, o.exchange); n += sstr(b + n, type);
    b[n++] = o.durable ? 2 : 0; p32(b + n, 0); n += 4; wall(c, b, mend(b, n)); amqp_wait(c, 40, 11);
}
static void amqp_bind(conn *c, const char *q, const char *key) {   /* no-wait: ten thousand go in one breath */
    u8 b[1024]; size_t n = mstart(b, 50, 20, 1); p16(b + n, 0); n += 2; n += sstr(b + n, q); n += sstr(b + n, o.exchange); n += sstr(b + n, key);
    b[n++] = 1; p32(b + n, 0); n += 4; wall(c, b, mend(b, n));
}
static void amqp_unexchange(conn *c) {
    u8 b[512]; size_t n = mstart(b, 40, 20, 1); p16(b + n, 0); n += 2; n += sstr(b + n, o.exchange); b[n++] = 0; wall(c, b, mend(b, n)); amqp_wait(c, 40, 21);
}
static route amqp_route(const char *exchange, const char *key) {
    u8 *b = malloc(strlen(exchange) + strlen(key) + 32); size_t n = mstart(b, 60, 40, 1); p16(b + n, 0); n += 2;
    n += sstr(b + n, exchange); n += sstr(b + n, key); b[n++] = 0; return (route){b, mend(b, n)};
}
/* Content with its properties in the order of their flags [amqp-0.9.1 4.2.6.1]. priority -1, expiration NULL: none. */
static form amqp_form(const conn *c, int kind, int priority, const char *expiration) {
    static const char *const types[] = {"order.created", "order.paid", "order.sent"};
    size_t cap = o.size + 4096 + (o.size / (c->frame_max - 8) + 1) * 8; u8 *h = malloc(cap); size_t k = 21; int flags = 0;
    form f = {.b = h}; h[0] = 2; p16(h + 1, 1); p16(h + 7, 60); p16(h + 9, 0); p64(h + 11, o.size);
    if (o.vary) {
        flags |= 1 << 13; size_t at = k; k += 4; k += sstr(h + k, "trace-id"); h[k++] = 'S'; p32(h + k, 32); f.trace = k + 4; k += 36;
        k += sstr(h + k, "attempt"); h[k++] = 'I'; p32(h + k, kind); k += 4; p32(h + at, k - at - 4);
    }
    if (o.persistent) { flags |= 1 << 12; h[k++] = 2; }
    if (priority >= 0) { flags |= 1 << 11; h[k++] = priority; }
    if (o.rpc) { flags |= 1 << 10 | 1 << 9; k += sstr(h + k, "0123456789abcdef"); f.id = k - 16; k += sstr(h + k, "amq.rabbitmq.reply-to"); }
    if (expiration) { flags |= 1 << 8; k += sstr(h + k, expiration); }
    if (o.vary) {
        flags |= 1 << 7 | 1 << 6 | 1 << 5; k += sstr(h + k, "0123456789abcdef"); f.id = k - 16; f.stamp = k; k += 8; k += sstr(h + k, types[kind]);
    }
    p16(h + 19, flags); p32(h + 3, k - 7); h[k++] = 0xCE;
    size_t left = o.size, per = c->frame_max - 8; f.body = k + 7;
    while (left) {
        size_t m = left < per ? left : per; h[k] = 3; p16(h + k + 1, 1); p32(h + k + 3, m);
        for (size_t i = 0; i < m; i++) h[k + 7 + i] = "abcdefghijklmnopqrstuvwxyz012345"[i & 31];
        h[k + 7 + m] = 0xCE; k += m + 8; left -= m;
    }
    f.n = k; return f;
}
static void key_name(char *to, size_t cap, int key, int binding) {   /* bound with a wildcard, published with a word */
    if (o.exchange) snprintf(to, cap, "k.%d.%s", key, binding ? "*" : "x");
    else if (o.queues > 1) snprintf(to, cap, "%s-%d", o.queue, key);
    else snprintf(to, cap, "%s", o.queue);
}
static const char *dead(const char *suffix) { static char b[2][300]; static int i; i ^= 1; snprintf(b[i], sizeof b[i], "%.200s%s", o.queue, suffix); return b[i]; }
static void amqp_templates(conn *c) {
    static route *shared; const char *exchange = o.exchange ? o.exchange : "";
    if (o.keys) {
        if (!shared) { shared = calloc(o.keys, sizeof *shared);
            for (int i = 0; i < o.keys; i++) { char k[300]; key_name(k, sizeof k, i, 0); shared[i] = amqp_route(exchange, k); } }
        c->routes = shared;
    } else { c->routes = calloc(2, sizeof(route)); c->routes[0] = amqp_route(exchange, c->queue); if (o.mix) c->routes[1] = amqp_route("", dead("-wait")); }
    for (int i = 0; i < 3; i++) c->forms[i] = amqp_form(c, i, o.mix && i == 1 ? 5 : -1, o.mix && i == 2 ? "300" : NULL);
}
static inline u64 mixed(u64 v) { v ^= v >> 33; v *= 0xff51afd7ed558ccdull; v ^= v >> 33; v *= 0xc4ceb9fe1a85ec53ull; return v ^ v >> 33; }
static inline int key_of(u64 id) { return (mixed(id) >> 8) % o.keys; }
enum { PRIORITY = 1, EXPIRES = 2, REJECTED = 3 };
static inline int fate(u64 id) { return (mixed(id) >> 8) % 10; }   /* --mix: a tenth each, the rest is plain */
static inline void hex16(u8 *to, u64 v) { for (int i = 15; i >= 0; i--, v >>= 4) to[i] = "0123456789abcdef"[v & 15]; }
static size_t amqp_put(conn *c, u64 seq, u64 ts) {   /* one message into the send buffer; returns its length */
    u64 id = (u64)c->id << 48 | seq; int kind = o.vary ? seq % 3 : 0, to = o.keys ? key_of(id) : 0;
    if (o.mix) { int what = fate(id); kind = what == PRIORITY ? 1 : what == EXPIRES ? 2 : 0; to = what == EXPIRES; }
    route *r = &c->routes[to]; form *f = &c->forms[kind];
    wreserve(c, r->n + f->n); u8 *b = c->wb + c->wn; memcpy(b, r->b, r->n); b += r->n; memcpy(b, f->b, f->n);
    if (f->id) hex16(b + f->id, mixed(id ^ 0x1234567));
    if (f->trace) { hex16(b + f->trace, mixed(id ^ 0x55aa)); hex16(b + f->trace + 16, mixed(id ^ 0xaa55)); }
    if (f->stamp) p64(b + f->stamp, 1700000000 + seq / 1000);
    if (o.size >= 8) memcpy(b + f->body, &id, 8);
    if (o.size >= 16) memcpy(b + f->body + 8, &ts, 8);
    return r->n + f->n;
}
/* RPC: what the request says of its answer. p: the flags of its properties. */
static void amqp_request(conn *c, const u8 *p) {
    int flags = g16(p); p += 2;
    for (int bit = 15; bit >= 14; bit--) if (flags >> bit & 1) p += 1 + p[0];
    if (flags >> 13 & 1) p += 4 + g32(p);
    for (int bit = 12; bit >= 11; bit--) if (flags >> bit & 1) p += 1;
    c->correlation[0] = c->reply_to[0] = 0;
    if (flags >> 10 & 1) { memcpy(c->correlation, p, 1 + p[0]); p += 1 + p[0]; }
    if (flags >> 9 & 1) memcpy(c->reply_to, p, 1 + p[0]);
    if (!c->reply_to[0]) die("a request without reply-to");
}
static void amqp_answer(conn *c, const u8 *body, size_t size) {
    wreserve(c, 640 + size); u8 *b = c->wb + c->wn; size_t n = mstart(b, 60, 40, 1); p16(b + n, 0); n += 2; b[n++] = 0;
    memcpy(b + n, c->reply_to, 1 + c->reply_to[0]); n += 1 + c->reply_to[0]; b[n++] = 0; n = mend(b, n); c->wn += n; b += n;
    b[0] = 2; p16(b + 1, 1); p16(b + 7, 60); p16(b + 9, 0); p64(b + 11, size); p16(b + 19, 1 << 10); n = 21;
    memcpy(b + n, c->correlation, 1 + c->correlation[0]); n += 1 + c->correlation[0]; n = mend(b, n); c->wn += n; b += n;
    b[0] = 3; p16(b + 1, 1); memcpy(b + 7, body, size); c->wn += mend(b, 7 + size);
}
