/* The queue of jobs.py, whose `take` carries plain blocks out without Python's lock.

   The loop's thread hands jobs over; the writer's thread waits in `take`. As long as what waits are
   blocks of the segment that is open, `take` stays here: it writes all of them with as few calls as
   possible, syncs, says how far it came and tells the loop, and waits again. It returns what is left
   to Python: jobs of any other kind, or blocks for which the disk has no room. A write or a sync that
   fails is raised, and never tried again. Where blocks must be safe elsewhere, it returns after each
   write, with the blocks that are written by then, and tells nobody.

   Jobs, and the bytes of their blocks, are let go by a thread that holds Python's lock: `put` and
   `take` do so for what was carried out before. Numbers are read by the loop while the writer sets
   them: each is one aligned word, and only grows. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MOST_PARTS 1024 /* buffers per pwritev: IOV_MAX of Linux */
#define SYNC_TIMES 28   /* buckets of the times that syncs took, as in jobs.py */
#define LARGE (256 << 10) /* bytes of a part from which on the system need not keep it, as in jobs.py */
#define PAGE 4096

typedef struct Node {
    struct Node *next;
    PyObject *job;
    PyObject *buffers; /* tuple of bytes; empty: it is no block */
    long long segment, length;
    Py_ssize_t count;
    struct iovec parts[];
} Node;

typedef struct {
    Node *first, *last;
} List;

typedef struct {
    PyObject_HEAD
    pthread_mutex_t guard; /* of the two lists */
    sem_t some;            /* a job waits; a condition would cost one system call more a block */
    int is_awaited;        /* the writer's thread waits for it, or is about to */
    List waiting, done;
    PyObject *pwritev, *fdatasync; /* NULL: the system's own */
    int signal; /* number of the eventfd that tells the loop */
    int syncs_each, returns_each;
    char is_over, keeps_cached;
    int fd;
    long long segment, offset, written, durable, synced, written_bytes, syncs;
    long long sync_times[SYNC_TIMES]; /* bucket i: syncs of less than 2^i microseconds, and not of less than half */
    long long sync_us;                /* all of them together */
    struct iovec *parts;
    size_t room; /* for so many parts */
} Jobs;

static PyObject *name_buffers, *name_errno, *name_length, *name_segment;

/* -- lists */

static void append(List *list, List *more) {
    if (!more->first) return;
    if (list->last) list->last->next = more->first;
    else list->first = more->first;
    list->last = more->last;
    more->first = more->last = NULL;
}

/* Let go of nodes. With Python's lock. */
static void release(List list) {
    for (Node *node = list.first; node;) {
        Node *next = node->next;
        Py_DECREF(node->job);
        Py_DECREF(node->buffers);
        PyMem_RawFree(node);
        node = next;
    }
}

static List take_list(Jobs *self, List *list) {
    pthread_mutex_lock(&self->guard);
    List taken = *list;
    list->first = list->last = NULL;
    pthread_mutex_unlock(&self->guard);
    return taken;
}

/* Jobs of a list in order, as a list of Python. With Python's lock. NULL: no memory. */
static PyObject *jobs_of(List list) {
    PyObject *jobs = PyList_New(0);
    for (Node *node = list.first; jobs && node; node = node->next)
        if (PyList_Append(jobs, node->job)) Py_CLEAR(jobs);
    return jobs;
}

/* -- errors */

/* Returns 0; -1: an exception is set. */
static int number_of(PyObject *thing, PyObject *name, long long *number) {
    PyObject *value = PyObject_GetAttr(thing, name);
    if (!value) return -1;
    *number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

static int is_full(int error) { return error == ENOSPC || error == EDQUOT; }

/* Take the exception that is set for what it is where it says that the disk is full: errno, then.
   Returns -1; -2: it is another one. */
static int raised_by_write(void) {
    PyObject *type, *value, *trace;
    long long number = 0;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (PyErr_GivenExceptionMatches(value, PyExc_OSError) &&
        !number_of(value, name_errno, &number) && is_full((int)number)) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        errno = (int)number;
        return -1;
    }
    PyErr_Restore(type, value, trace);
    return -2;
}

/* -- without Python's lock: calls that tests replace take it for as long as they last */

/* Returns the bytes written; -1: errno says why; -2: an exception is set. */
static ssize_t call_pwritev(Jobs *self, PyThreadState **state, struct iovec *parts, int count) {
    if (!self->pwritev) {
        ssize_t done;
        do done = pwritev(self->fd, parts, count, self->offset);
        while (done < 0 && errno == EINTR);
        return done;
    }
    PyEval_RestoreThread(*state);
    ssize_t done = -1;
    PyObject *buffers = PyList_New(count), *result = NULL;
    for (int i = 0; buffers && i < count; i++) {
        PyObject *part = PyBytes_FromStringAndSize(parts[i].iov_base, parts[i].iov_len);
        if (!part) Py_CLEAR(buffers);
        else PyList_SET_ITEM(buffers, i, part);
    }
    if (buffers) result = PyObject_CallFunction(self->pwritev, "iOL", self->fd, buffers, self->offset);
    if (result) done = PyLong_AsSsize_t(result);
    Py_XDECREF(buffers);
    Py_XDECREF(result);
    if (PyErr_Occurred()) done = raised_by_write();
    int error = errno;
    *state = PyEval_SaveThread();
    errno = error;
    return done;
}

static long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static void count_sync(Jobs *self, long long us) {
    int at = 0;
    while (us >> at && at < SYNC_TIMES - 1) at++;
    self->sync_times[at]++;
    self->sync_us += us;
    self->syncs++;
}

/* Returns 0; -1: errno says why; -2: an exception is set. */
static int call_fdatasync(Jobs *self, PyThreadState **state) {
    if (!self->fdatasync) {
        int result;
        do result = fdatasync(self->fd);
        while (result < 0 && errno == EINTR);
        return result;
    }
    PyEval_RestoreThread(*state);
    PyObject *result = PyObject_CallFunction(self->fdatasync, "i", self->fd);
    Py_XDECREF(result);
    *state = PyEval_SaveThread();
    return result ? 0 : -2;
}

/* Tell the loop. It cannot fail but where it was told 2^64 times and has not looked. */
static void tell(Jobs *self) {
    unsigned long long one = 1;
    ssize_t done;
    do done = write(self->signal, &one, sizeof one);
    while (done < 0 && errno == EINTR);
}

/* Write the parts end to end at the offset, however short the writes are. Changes them. Returns as
   call_pwritev does, 0 instead of the bytes. */
static int write_all(Jobs *self, PyThreadState **state, struct iovec *parts, size_t count) {
    while (count) {
        size_t group = count < MOST_PARTS ? count : MOST_PARTS;
        ssize_t done = call_pwritev(self, state, parts, (int)group);
        if (done < 0) return (int)done;
        if (done == 0) {
            errno = EIO;
            return -1;
        }
        self->offset += done;
        while (count && (size_t)done >= parts->iov_len) {
            done -= parts->iov_len;
            parts++;
            count--;
        }
        if (done) {
            parts->iov_base = (char *)parts->iov_base + done;
            parts->iov_len -= done;
        }
    }
    return 0;
}

enum { FINE, FULL, FAILED, RAISED };

/* Carry out blocks of the open segment. */
static int carry_out(Jobs *self, PyThreadState **state, List batch) {
    size_t count = 0;
    int is_large = 0;
    long long length = 0, begin = self->offset;
    for (Node *node = batch.first; node; node = node->next) {
        count += node->count;
        length += node->length;
    }
    if (count > self->room) {
        struct iovec *parts = PyMem_RawRealloc(self->parts, count * sizeof *parts);
        if (!parts) {
            errno = ENOMEM;
            return FAILED;
        }
        self->parts = parts;
        self->room = count;
    }
    size_t at = 0;
    for (Node *node = batch.first; node; node = node->next)
        for (Py_ssize_t i = 0; i < node->count; i++)
            if (node->parts[i].iov_len) {
                is_large |= node->parts[i].iov_len >= LARGE;
                self->parts[at++] = node->parts[i];
            }
    int result = write_all(self, state, self->parts, at);
    if (result) {
        self->offset = begin;
        return result == -2 ? RAISED : is_full(errno) ? FULL : FAILED;
    }
    self->written_bytes += length;
    self->written = self->segment << 32 | self->offset;
    if (self->returns_each) return FINE;
    if (self->syncs_each) {
        long long began_us = now_us();
        result = call_fdatasync(self, state);
        if (result) return result == -2 ? RAISED : FAILED;
        count_sync(self, now_us() - began_us);
        self->durable = self->written;
    }
    self->synced = self->written;
    tell(self);
    if (is_large && self->syncs_each && !self->keeps_cached && !self->pwritev) {
        begin -= begin % PAGE;
        posix_fadvise(self->fd, begin, self->offset - begin, POSIX_FADV_DONTNEED); /* a hint: it may fail */
    }
    return FINE;
}

/* -- as Python sees it */

PyDoc_STRVAR(put_doc, "put(job): hand a job over.");

static PyObject *jobs_put(Jobs *self, PyObject *job) {
    long long segment, length;
    if (number_of(job, name_segment, &segment) || number_of(job, name_length, &length)) return NULL;
    PyObject *list = PyObject_GetAttr(job, name_buffers);
    if (!list) return NULL;
    PyObject *buffers = PySequence_Tuple(list);
    Py_DECREF(list);
    if (!buffers) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(buffers);
    Node *node = PyMem_RawMalloc(sizeof *node + count * sizeof(struct iovec));
    if (!node) {
        Py_DECREF(buffers);
        return PyErr_NoMemory();
    }
    *node = (Node){.buffers = buffers, .segment = segment, .length = length, .count = count};
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *part = PyTuple_GET_ITEM(buffers, i);
        if (!PyBytes_Check(part)) {
            PyErr_Format(PyExc_TypeError, "a buffer is of %.100s, expected bytes", Py_TYPE(part)->tp_name);
            Py_DECREF(buffers);
            PyMem_RawFree(node);
            return NULL;
        }
        node->parts[i] = (struct iovec){PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part)};
    }
    node->job = Py_NewRef(job);
    List one = {node, node};
    pthread_mutex_lock(&self->guard);
    append(&self->waiting, &one);
    int wakes = self->is_awaited;
    self->is_awaited = 0;
    List done = self->done;
    self->done = (List){NULL, NULL};
    pthread_mutex_unlock(&self->guard);
    if (wakes) sem_post(&self->some);
    release(done);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(take_doc,
             "take(): wait for jobs; carry plain blocks out; return, in order, what is left to do.");

static PyObject *jobs_take(Jobs *self, PyObject *unused) {
    int result = FINE, error = 0, has_rest = 1; /* whether what came meanwhile goes along */
    List batch = {NULL, NULL};
    PyThreadState *state = PyEval_SaveThread();
    for (;;) {
        pthread_mutex_lock(&self->guard);
        append(&self->done, &batch);
        while (!self->waiting.first) {
            self->is_awaited = 1;
            pthread_mutex_unlock(&self->guard);
            sem_wait(&self->some); /* and looks again, also where a signal ended it */
            pthread_mutex_lock(&self->guard);
        }
        batch = self->waiting;
        Node *last = NULL;
        for (Node *node = batch.first; node; node = node->next) {
            if (!node->count || node->segment != self->segment || self->is_over) break;
            last = node;
        }
        if (!last) {
            self->waiting = (List){NULL, NULL};
            pthread_mutex_unlock(&self->guard);
            break;
        }
        self->waiting = (List){last->next, last->next ? batch.last : NULL};
        batch.last = last;
        last->next = NULL;
        pthread_mutex_unlock(&self->guard);
        result = carry_out(self, &state, batch);
        if (result || self->returns_each) {
            error = errno;
            has_rest = result;
            break;
        }
    }
    PyEval_RestoreThread(state);
    PyObject *jobs = NULL;
    if (result == FAILED) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
    } else if (result != RAISED) {
        if (has_rest) {
            List rest = take_list(self, &self->waiting);
            append(&batch, &rest);
        }
        jobs = jobs_of(batch);
    }
    release(batch);
    release(take_list(self, &self->done));
    return jobs;
}

PyDoc_STRVAR(begin_doc, "begin(fd, segment): go on with a new file, from its beginning.");

static PyObject *jobs_begin(Jobs *self, PyObject *args) {
    if (!PyArg_ParseTuple(args, "iL", &self->fd, &self->segment)) return NULL;
    self->offset = 0;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(tell_doc, "tell(position): everything up to there may be confirmed; tell the loop.");

static PyObject *jobs_tell(Jobs *self, PyObject *position) {
    long long synced = PyLong_AsLongLong(position);
    if (PyErr_Occurred()) return NULL;
    self->synced = synced;
    tell(self);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(count_sync_doc, "count_sync(us): count a sync of the writer's own, of so many microseconds.");

static PyObject *jobs_count_sync(Jobs *self, PyObject *us) {
    long long taken = PyLong_AsLongLong(us);
    if (PyErr_Occurred()) return NULL;
    count_sync(self, taken);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(sync_times_doc, "sync_times(): how many syncs took how long, and all of them together.");

static PyObject *jobs_sync_times(Jobs *self, PyObject *unused) {
    PyObject *counts = PyList_New(SYNC_TIMES);
    for (int i = 0; counts && i < SYNC_TIMES; i++) {
        PyObject *count = PyLong_FromLongLong(self->sync_times[i]);
        if (!count) Py_CLEAR(counts);
        else PyList_SET_ITEM(counts, i, count);
    }
    return counts ? Py_BuildValue("NL", counts, self->sync_us) : NULL;
}

static PyMethodDef methods[] = {
    {"put", (PyCFunction)jobs_put, METH_O, put_doc},
    {"take", (PyCFunction)jobs_take, METH_NOARGS, take_doc},
    {"begin", (PyCFunction)jobs_begin, METH_VARARGS, begin_doc},
    {"tell", (PyCFunction)jobs_tell, METH_O, tell_doc},
    {"count_sync", (PyCFunction)jobs_count_sync, METH_O, count_sync_doc},
    {"sync_times", (PyCFunction)jobs_sync_times, METH_NOARGS, sync_times_doc},
    {NULL},
};

#define NUMBER(name) {#name, T_LONGLONG, offsetof(Jobs, name), 0, NULL}

static PyMemberDef members[] = {
    NUMBER(offset), NUMBER(written), NUMBER(durable), NUMBER(synced),
    NUMBER(written_bytes), NUMBER(syncs), {"is_over", T_BOOL, offsetof(Jobs, is_over), 0, NULL},
    {"keeps_cached", T_BOOL, offsetof(Jobs, keeps_cached), 0, NULL}, {NULL},
};

PyDoc_STRVAR(jobs_doc,
             "Jobs(syncs_each, returns_each, signal, pwritev, fdatasync)\n\n"
             "syncs_each: whether every write is synced. returns_each: whether take returns what it\n"
             "has written. signal: number of the eventfd that tells the loop. pwritev, fdatasync:\n"
             "None for the system's own.");

static PyObject *jobs_new(PyTypeObject *type, PyObject *args, PyObject *names) {
    PyObject *pwritev, *fdatasync;
    int syncs_each, returns_each, signal;
    if (!PyArg_ParseTuple(args, "ppiOO", &syncs_each, &returns_each, &signal, &pwritev, &fdatasync))
        return NULL;
    Jobs *self = (Jobs *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    pthread_mutex_init(&self->guard, NULL);
    sem_init(&self->some, 0, 0);
    self->syncs_each = syncs_each;
    self->returns_each = returns_each;
    self->signal = signal;
    self->fd = -1;
    self->pwritev = pwritev == Py_None ? NULL : Py_NewRef(pwritev);
    self->fdatasync = fdatasync == Py_None ? NULL : Py_NewRef(fdatasync);
    return (PyObject *)self;
}

static void jobs_dealloc(Jobs *self) {
    PyTypeObject *type = Py_TYPE(self);
    release(self->waiting);
    release(self->done);
    PyMem_RawFree(self->parts);
    sem_destroy(&self->some);
    pthread_mutex_destroy(&self->guard);
    Py_XDECREF(self->pwritev);
    Py_XDECREF(self->fdatasync);
    type->tp_free(self);
    Py_DECREF(type);
}

/* -- checksums */

#ifdef __x86_64__
#define HAS_SUM __builtin_cpu_supports("sse4.2")

__attribute__((target("sse4.2"))) static unsigned sum_of(unsigned before, const char *at, size_t size) {
    unsigned long long sum = ~before, eight;
    for (; size >= sizeof eight; at += sizeof eight, size -= sizeof eight) {
        memcpy(&eight, at, sizeof eight);
        sum = __builtin_ia32_crc32di(sum, eight);
    }
    unsigned rest = (unsigned)sum;
    for (; size; at++, size--) rest = __builtin_ia32_crc32qi(rest, (unsigned char)*at);
    return ~rest;
}
#else
#define HAS_SUM 0
static unsigned sum_of(unsigned before, const char *at, size_t size) { return 0; }
#endif

PyDoc_STRVAR(crc32c_doc, "crc32c(data): CRC-32C of bytes. Not there where the processor has no instruction for it.");

static PyObject *crc32c(PyObject *module, PyObject *data) {
    if (!PyBytes_Check(data)) {
        PyErr_Format(PyExc_TypeError, "data is of %.100s, expected bytes", Py_TYPE(data)->tp_name);
        return NULL;
    }
    return PyLong_FromUnsignedLong(sum_of(0, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)));
}

static PyMethodDef sums[] = {{"crc32c", crc32c, METH_O, crc32c_doc}, {NULL}};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)jobs_doc}, {Py_tp_new, jobs_new},   {Py_tp_dealloc, jobs_dealloc},
    {Py_tp_methods, methods},      {Py_tp_members, members}, {0, NULL},
};

static PyType_Spec spec = {
    .name = "tallymark.journal.native.Jobs",
    .basicsize = sizeof(Jobs),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "native", "The journal's queue of jobs, in C: see jobs.py; and a checksum.", -1,
};

PyMODINIT_FUNC PyInit_native(void) {
    if (!(name_buffers = PyUnicode_InternFromString("buffers")) ||
        !(name_errno = PyUnicode_InternFromString("errno")) ||
        !(name_length = PyUnicode_InternFromString("length")) ||
        !(name_segment = PyUnicode_InternFromString("segment")))
        return NULL;
    PyObject *made = PyModule_Create(&module), *type = made ? PyType_FromSpec(&spec) : NULL;
    if (!type || (HAS_SUM && PyModule_AddFunctions(made, sums)) || PyModule_AddObject(made, "Jobs", type)) {
        Py_XDECREF(type);
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
