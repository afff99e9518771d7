/* measure.h - a histogram of latencies, and what a broker takes of CPU and memory */

/* --------------------------------------------------- log-linear histogram */
#define HB 7                                  /* 128 buckets per octave: <0.8% error */
#define HN ((64 - HB + 1) << HB)
typedef struct { u64 n, max, c[HN]; } hist;
static inline void hadd(hist *h, u64 v) {
    u32 i;
    if (v < (1u << HB)) i = v;
    else { int e = 63 - __builtin_clzll(v) - HB; i = ((e + 1) << HB) + ((v >> e) & ((1 << HB) - 1)); }
    h->c[i]++; h->n++; if (v > h->max) h->max = v;
}
static double hq(const hist *h, double q) {   /* microseconds */
    if (!h->n) return 0;
    u64 want = (u64)(q * h->n), s = 0; if (want >= h->n) want = h->n - 1;
    for (u32 i = 0; i < HN; i++) if ((s += h->c[i]) > want) {
        if (i < (1u << HB)) return i / 1e3;
        int e = (i >> HB) - 1; u64 lo = ((u64)(1 << HB) + (i & ((1 << HB) - 1))) << e;
        return (lo + ((1ull << e) >> 1)) / 1e3;
    }
    return h->max / 1e3;
}
static inline void hmerge(hist *a, const hist *b) { for (int i = 0; i < HN; i++) a->c[i] += b->c[i]; a->n += b->n; if (b->max > a->max) a->max = b->max; }

/* ------------------------------------------------- broker CPU and memory */
typedef struct { int pid, ppid; u64 t; } pinfo;
static int read_stat(int pid, pinfo *pi) {
    char path[64], buf[1024]; snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC); if (fd < 0) return -1;
    int n = read(fd, buf, sizeof buf - 1); close(fd); if (n <= 0) return -1; buf[n] = 0;
    char *p = strrchr(buf, ')'); if (!p) return -1;
    unsigned long ut, st; long cut, cst; int ppid;
    if (sscanf(p + 2, "%*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld", &ppid, &ut, &st, &cut, &cst) != 5) return -1;
    pi->pid = pid; pi->ppid = ppid; pi->t = ut + st + cut + cst; return 0;
}
static int tree(pinfo *out, int cap) {        /* the given pids and all their descendants */
    static pinfo all[8192]; int n = 0, k = 0;
    if (!o.npids) return 0;
    DIR *d = opendir("/proc"); struct dirent *e;
    while (d && (e = readdir(d)) && n < 8192) if (isdigit((u8)e->d_name[0])) if (!read_stat(atoi(e->d_name), &all[n])) n++;
    if (d) closedir(d);
    for (int i = 0; i < n; i++) for (int j = 0; j < o.npids; j++) if (all[i].pid == o.pids[j] && k < cap) { out[k++] = all[i]; break; }
    for (int c = 0; c < k; c++) for (int i = 0; i < n; i++) if (all[i].ppid == out[c].pid) {
        int dup = 0; for (int j = 0; j < k; j++) dup |= out[j].pid == all[i].pid;
        if (!dup && k < cap) out[k++] = all[i];
    }
    return k;
}
static double broker_cpu(void) { pinfo t[256]; int n = tree(t, 256); u64 s = 0; for (int i = 0; i < n; i++) s += t[i].t; return s / (double)sysconf(_SC_CLK_TCK); }
static void broker_mem(long *hwm, long *anon) {
    pinfo t[256]; int n = tree(t, 256); *hwm = *anon = 0;
    for (int i = 0; i < n; i++) {
        char path[64], buf[4096]; snprintf(path, sizeof path, "/proc/%d/status", t[i].pid);
        int fd = open(path, O_RDONLY | O_CLOEXEC); if (fd < 0) continue;
        int k = read(fd, buf, sizeof buf - 1); close(fd); if (k <= 0) continue; buf[k] = 0;
        char *p; if ((p = strstr(buf, "VmHWM:"))) *hwm += atol(p + 6);
        if ((p = strstr(buf, "RssAnon:"))) *anon += atol(p + 8);
        if ((p = strstr(buf, "RssShmem:"))) *anon += atol(p + 9);
    }
}
static void reset_hwm(void) {                 /* restart the VmHWM peak; needs root, failure is fine */
    pinfo t[256]; int n = tree(t, 256);
    for (int i = 0; i < n; i++) { char p[64]; snprintf(p, sizeof p, "/proc/%d/clear_refs", t[i].pid); int fd = open(p, O_WRONLY | O_CLOEXEC); if (fd >= 0) { if (write(fd, "5", 1)) {} close(fd); } }
}
static volatile int sampling; static long anon_peak, hwm_peak;
static void *sampler(void *x) {
    (void)x;
    while (sampling) { long h, a; broker_mem(&h, &a); if (a > anon_peak) anon_peak = a; if (h > hwm_peak) hwm_peak = h;
        struct timespec t = {0, 200000000}; nanosleep(&t, NULL); }
    return NULL;
}
