/* nsq_nats.h - NSQ and NATS: set-up and prebuilt messages */

/* -------------------------------------------------------------------- NSQ */
static int nsq_frame(conn *c, u8 **f, u32 *n) {    /* 1 if a whole frame is buffered */
    if (c->rn - c->ro < 4) return 0;
    u32 s = g32(c->rb + c->ro); if (c->rn - c->ro < s + 4ull) return 0;
    *f = c->rb + c->ro + 4; *n = s; c->ro += 4 + s; return 1;
}
static void nsq_wait(conn *c, const char *want) {
    u8 *f; u32 n;
    for (;;) {
        while (!nsq_frame(c, &f, &n)) fill(c);
        u32 t = g32(f);
        if (t == 0 && n - 4 == 11 && !memcmp(f + 4, "_heartbeat_", 11)) { wall(c, "NOP\n", 4); continue; }
        if (t == 0) { if (want && (n - 4 != strlen(want) || memcmp(f + 4, want, n - 4))) continue; return; }
        if (t == 1) die("nsq error: %.*s", (int)n - 4, f + 4);
    }
}
static void nsq_open(conn *c) {
    char js[256]; u8 b[512]; dial(c); wall(c, "  V2", 4);
    int n = snprintf(js, sizeof js, "{\"client_id\":\"loadgen%d\",\"feature_negotiation\":false", c->id);
    if (o.obt) n += snprintf(js + n, sizeof js - n, ",\"output_buffer_timeout\":%d", o.obt);
    if (o.obs) n += snprintf(js + n, sizeof js - n, ",\"output_buffer_size\":%d", o.obs);
    js[n++] = '}';
    memcpy(b, "IDENTIFY\n", 9); p32(b + 9, n); memcpy(b + 13, js, n); wall(c, b, 13 + n); nsq_wait(c, "OK");
}
static void nsq_sub(conn *c) { char b[512]; wall(c, b, snprintf(b, sizeof b, "SUB %s %s\n", c->queue, o.channel)); nsq_wait(c, "OK"); }
static void nsq_template(conn *c) {           /* one MPUB of --mpub bodies, or one PUB */
    size_t m = o.mpub; u8 *b = malloc(512 + m * (o.size + 4ull)); size_t n;
    if (m == 1) { n = sprintf((char *)b, "PUB %s\n", c->queue); p32(b + n, o.size); n += 4; c->tpl_body = n; }
    else { n = sprintf((char *)b, "MPUB %s\n", c->queue); p32(b + n, 4 + m * (o.size + 4)); p32(b + n + 4, m); n += 8; c->tpl_body = n + 4; }
    for (size_t j = 0; j < m; j++) { if (m > 1) { p32(b + n, o.size); n += 4; } for (int i = 0; i < o.size; i++) b[n++] = "abcdefghijklmnopqrstuvwxyz012345"[i & 31]; }
    c->tpl = b; c->tpl_len = n;
}

/* ------------------------------------------------------- NATS, without JetStream */
static void nats_wait(conn *c, const char *want) {   /* skips lines up to one that begins so */
    for (;;) {
        u8 *at = c->rb + c->ro, *end = memmem(at, c->rn - c->ro, "\r\n", 2);
        if (!end) { fill(c); continue; }
        c->ro += end + 2 - at; if (!memcmp(at, want, strlen(want))) return;
        if (*at == '-') die("nats error: %.*s", (int)(end - at), at);
    }
}
static void nats_open(conn *c) {
    dial(c); nats_wait(c, "INFO"); const char *hello = "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nPING\r\n"; wall(c, hello, strlen(hello)); nats_wait(c, "PONG");
}
static void nats_sub(conn *c) { char b[512]; wall(c, b, snprintf(b, sizeof b, "SUB %s 1\r\nPING\r\n", c->queue)); nats_wait(c, "PONG"); }
static void nats_template(conn *c) {
    u8 *b = malloc(512 + o.size); size_t n = sprintf((char *)b, "PUB %s %d\r\n", c->queue, o.size); c->tpl_body = n;
    for (int i = 0; i < o.size; i++) b[n++] = "abcdefghijklmnopqrstuvwxyz012345"[i & 31];
    b[n++] = '\r'; b[n++] = '\n'; c->tpl = b; c->tpl_len = n;
}
