/* The floor of a message that comes alone: what any broker on this machine has to do for it, and nothing else.

   gcc -O2 -pthread -o build/floor bench/floor.c && build/floor KIND MESSAGES [A_SECOND] [FILE]

   One process is the clients, the other the least a broker can be. Of a message it reads 1,100 bytes of a publish,
   has a thread write a block of 1,400 bytes into a file that was written before and sync it, hears of that by an
   eventfd, writes the delivery and the confirm to two sockets, and reads the acknowledgement. Of a call it passes on
   the question and the answer, without a disk. KIND is

   message   as told: A_SECOND of them (row f); 0, as where it is left out: each follows the confirm of the one before
             (row n1)
   unsynced  the same without the sync
   call      a question and its answer (row i1), one after the other

   Prints the broker's CPU a message or call in microseconds, and the switches of its threads. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PUBLISH = 1100, DELIVERY = 1110, CONFIRM = 21, ACK = 21, BLOCK = 1400, CALL = 220, FILE_BYTES = 64 << 20 };

static char bytes[FILE_BYTES];
static int file, told, syncs;
static long wanted;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t some = PTHREAD_COND_INITIALIZER;

static void check(int is_fine, const char *what) {
    if (is_fine) return;
    perror(what);
    exit(1);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void get(int socket, int size) {
    char into[DELIVERY];
    for (int have = 0; have < size;) {
        ssize_t more = recv(socket, into, size - have, 0);
        check(more > 0, "recv");
        have += more;
    }
}

static void put(int socket, int size) { check(send(socket, bytes, size, 0) == size, "send"); }

/* Publish on one connection, acknowledge on the other; each message follows the confirm of the one before. */
static void send_messages(int source, int sink, long messages, double a_second) {
    double began = now_s();
    for (long i = 0; i < messages; i++) {
        for (double left; a_second > 0 && (left = began + i / a_second - now_s()) > 0;) {
            struct timespec pause = {0, left * 1e9};
            nanosleep(&pause, NULL);
        }
        put(source, PUBLISH);
        get(sink, DELIVERY);
        put(sink, ACK);
        get(source, CONFIRM);
    }
}

/* Ask on one connection, answer on the other. */
static void send_calls(int source, int sink, long calls) {
    for (long i = 0; i < calls; i++) {
        put(source, CALL);
        get(sink, CALL);
        put(sink, CALL);
        get(source, CALL);
    }
}

static void *write_blocks(void *unused) {
    off_t at = 0;
    for (long seen = 0;;) {
        pthread_mutex_lock(&guard);
        while (wanted == seen) pthread_cond_wait(&some, &guard);
        seen = wanted;
        pthread_mutex_unlock(&guard);
        check(pwrite(file, bytes, BLOCK, at) == BLOCK, "pwrite");
        if (syncs) check(!fdatasync(file), "fdatasync");
        at = (at + BLOCK) % (FILE_BYTES - BLOCK);
        check(!eventfd_write(told, 1), "eventfd");
    }
    return unused;
}

/* Serve both connections until one of them ends. */
static void serve(int source, int sink, int passes_on) {
    int poll = epoll_create1(0), all[] = {source, sink, told};
    for (int i = 0; i < 3; i++) {
        struct epoll_event one = {.events = EPOLLIN, .data.fd = all[i]};
        check(!epoll_ctl(poll, EPOLL_CTL_ADD, all[i], &one), "epoll_ctl");
    }
    static char into[256 * 1024];
    for (;;) {
        struct epoll_event ready[8];
        int count = epoll_wait(poll, ready, 8, -1);
        check(count > 0, "epoll_wait");
        for (int i = 0; i < count; i++) {
            eventfd_t many;
            int here = ready[i].data.fd;
            if (here == told) {
                check(!eventfd_read(told, &many), "eventfd");
                put(sink, DELIVERY);
                put(source, CONFIRM);
                continue;
            }
            ssize_t size = recv(here, into, sizeof into, 0);
            if (size <= 0) return;
            if (passes_on) {
                put(here == source ? sink : source, size);
            } else if (here == source) {
                pthread_mutex_lock(&guard);
                wanted++;
                pthread_mutex_unlock(&guard);
                pthread_cond_signal(&some);
            }
        }
    }
}

/* Connect two sockets over loopback. */
static int connected(int *peer) {
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    int door = socket(AF_INET, SOCK_STREAM, 0), ours = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    check(!bind(door, (void *)&where, size) && !listen(door, 1), "listen");
    check(!getsockname(door, (void *)&where, &size), "getsockname");
    check(!connect(ours, (void *)&where, size), "connect");
    *peer = accept(door, NULL, NULL);
    close(door);
    setsockopt(ours, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(*peer, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return ours;
}

static double us_of(struct timeval time) { return time.tv_sec * 1e6 + time.tv_usec; }

static double used_us(struct rusage *used) {
    check(!getrusage(RUSAGE_SELF, used), "getrusage");
    return us_of(used->ru_utime) + us_of(used->ru_stime);
}

int main(int count, char **words) {
    const char *kind = count > 2 ? words[1] : "";
    int is_call = !strcmp(kind, "call");
    syncs = !strcmp(kind, "message");
    long messages = count > 2 ? atol(words[2]) : 0;
    if (messages < 1 || !(is_call || syncs || !strcmp(kind, "unsynced"))) {
        fprintf(stderr, "usage: %s message|unsynced|call MESSAGES [A_SECOND] [FILE]\n", words[0]);
        return 2;
    }
    double a_second = count > 3 ? atof(words[3]) : 0;
    const char *name = count > 4 ? words[4] : "floor.dat";
    check((file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0, name);
    if (!is_call) check(write(file, bytes, FILE_BYTES) == FILE_BYTES && !fsync(file), name);
    unlink(name);

    int source, sink, source_peer = connected(&source), sink_peer = connected(&sink);
    pid_t clients = fork();
    check(clients >= 0, "fork");
    if (!clients) {
        if (is_call) send_calls(source_peer, sink_peer, messages);
        else send_messages(source_peer, sink_peer, messages, a_second);
        _exit(0);
    }
    close(source_peer);
    close(sink_peer);
    pthread_t writer;
    check((told = eventfd(0, EFD_NONBLOCK)) >= 0, "eventfd");
    check(!pthread_create(&writer, NULL, write_blocks, NULL), "pthread_create");
    struct rusage before, after;
    double began_us = used_us(&before);
    serve(source, sink, is_call);
    double cpu_us = (used_us(&after) - began_us) / messages;
    long switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw;
    int status;
    check(waitpid(clients, &status, 0) == clients, "waitpid");
    if (status) {
        fprintf(stderr, "the clients ended early\n");
        return 1;
    }
    printf("%.1f us of CPU, %.2f switches\n", cpu_us, (double)switches / messages);
    return 0;
}
