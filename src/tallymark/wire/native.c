/* What wire/ would do by several copies of every byte, by one: frames around the content of messages;
   and a loop over equal messages. What the functions are for is said where they are called, in
   amqp091/deliveries.py, amqp10/sending.py and amqp091/kernel.py, which do the same without them. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define TAG_BYTES 8
#define FRAME_BYTES 8 /* of a frame beside its payload */
#define SIZE_AT 3     /* of a frame's size in its head */

typedef struct {
    Py_buffer places; /* held */
    const uint32_t *cuts;
    const char *raw;
    Py_ssize_t lo, hi;
    unsigned long long tag;
} Messages;

/* Both return -1 with an exception set where arguments are not so. */

static int are_many(Py_ssize_t count, Py_ssize_t expected) {
    if (count == expected) return 0;
    PyErr_Format(PyExc_TypeError, "%zd arguments, expected %zd", count, expected);
    return -1;
}

static int is_bytes(const char *name, PyObject *value) {
    if (PyBytes_Check(value)) return 0;
    PyErr_Format(PyExc_TypeError, "%s is of %.100s, expected bytes", name, Py_TYPE(value)->tp_name);
    return -1;
}

/* Take tag, raw, cuts, lo and hi from the arguments, lo = hi included. Returns -1 with an exception set. */
static int take(Messages *of, PyObject *const *arguments) {
    PyObject *raw = arguments[1];
    of->places.obj = NULL;
    of->tag = PyLong_AsUnsignedLongLong(arguments[0]);
    of->lo = PyLong_AsSsize_t(arguments[3]);
    of->hi = PyLong_AsSsize_t(arguments[4]);
    if (PyErr_Occurred()) return -1;
    if (is_bytes("raw", raw)) return -1;
    if (PyObject_GetBuffer(arguments[2], &of->places, PyBUF_ND)) return -1;
    Py_ssize_t count = of->places.itemsize == sizeof(uint32_t) ? of->places.len / of->places.itemsize : 0;
    if (of->lo < 0 || of->lo > of->hi || of->hi >= count) {
        PyErr_Format(PyExc_ValueError, "messages %zd to %zd of an array of %zd cuts", of->lo, of->hi, count);
        PyBuffer_Release(&of->places);
        return -1;
    }
    of->cuts = of->places.buf;
    of->raw = PyBytes_AS_STRING(raw);
    for (Py_ssize_t i = of->lo; i < of->hi; i++)
        if (of->cuts[i] > of->cuts[i + 1] || of->cuts[i + 1] > (size_t)PyBytes_GET_SIZE(raw)) {
            PyErr_Format(PyExc_ValueError, "message %zd is not in its %zd bytes", i, PyBytes_GET_SIZE(raw));
            PyBuffer_Release(&of->places);
            return -1;
        }
    return 0;
}

/* Return what is left of message i behind `skipped` bytes; -1 with an exception set if it is shorter. */
static Py_ssize_t size_of(const Messages *of, Py_ssize_t i, size_t skipped) {
    size_t size = of->cuts[i + 1] - of->cuts[i];
    if (size >= skipped) return size - skipped;
    PyErr_Format(PyExc_ValueError, "message %zd has %zu bytes, expected %zu or more", i, size, skipped);
    return -1;
}

static char *put(char *at, const void *data, size_t size) {
    memcpy(at, data, size);
    return at + size;
}

static char *put_bytes(char *at, PyObject *data) {
    return put(at, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data));
}

/* The low bytes of a number, big-endian. */
static char *put_number(char *at, unsigned long long number, int bytes) {
    for (int bits = 8 * bytes - 8; bits >= 0; bits -= 8) *at++ = (char)(number >> bits);
    return at;
}

PyDoc_STRVAR(deliveries_doc,
             "encode_deliveries(prefix, suffix, tag, raw, cuts, lo, hi, method_size)\n\n"
             "Raises ValueError where the cuts are not those of such messages in raw.");

static PyObject *deliveries(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Messages of;
    if (are_many(count, 8)) return NULL;
    PyObject *prefix = arguments[0], *suffix = arguments[1], *made = NULL;
    size_t skipped = PyLong_AsSize_t(arguments[7]);
    if (PyErr_Occurred()) return NULL;
    if (is_bytes("prefix", prefix) || is_bytes("suffix", suffix)) return NULL;
    if (take(&of, arguments + 2)) return NULL;
    Py_ssize_t total = (of.hi - of.lo) * (PyBytes_GET_SIZE(prefix) + TAG_BYTES + PyBytes_GET_SIZE(suffix));
    for (Py_ssize_t i = of.lo; i < of.hi; i++) {
        Py_ssize_t size = size_of(&of, i, skipped);
        if (size < 0) goto end;
        total += size;
    }
    if (!(made = PyBytes_FromStringAndSize(NULL, total))) goto end;
    char *at = PyBytes_AS_STRING(made);
    for (Py_ssize_t i = of.lo; i < of.hi; i++) {
        at = put_bytes(at, prefix);
        at = put_number(at, of.tag++, TAG_BYTES);
        at = put_bytes(at, suffix);
        at = put(at, of.raw + of.cuts[i] + skipped, of.cuts[i + 1] - of.cuts[i] - skipped);
    }
end:
    PyBuffer_Release(&of.places);
    return made;
}

/* Return the bytes of the method frame in front of message i; 0 with an exception set. */
static size_t method_size(const Messages *of, Py_ssize_t i) {
    if (size_of(of, i, FRAME_BYTES) < 0) return 0;
    const unsigned char *size = (const unsigned char *)of->raw + of->cuts[i] + SIZE_AT;
    size_t found = FRAME_BYTES + ((size_t)size[0] << 24 | size[1] << 16 | size[2] << 8 | size[3]);
    return size_of(of, i, found) < 0 ? 0 : found;
}

PyDoc_STRVAR(mixed_deliveries_doc,
             "encode_mixed_deliveries(prefixes, suffixes, tag, raw, cuts, lo, hi)\n\n"
             "Raises ValueError where the cuts are not those of such messages in raw, or there is not a\n"
             "prefix and a suffix of each.");

static PyObject *mixed_deliveries(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Messages of;
    if (are_many(count, 7)) return NULL;
    PyObject *prefixes = arguments[0], *suffixes = arguments[1], *made = NULL;
    if (!PyList_Check(prefixes) || !PyList_Check(suffixes)) {
        PyErr_SetString(PyExc_TypeError, "prefixes or suffixes is no list");
        return NULL;
    }
    if (take(&of, arguments + 2)) return NULL;
    Py_ssize_t n = of.hi - of.lo, total = 0;
    if (PyList_GET_SIZE(prefixes) != n || PyList_GET_SIZE(suffixes) != n) {
        PyErr_Format(PyExc_ValueError, "%zd prefixes and %zd suffixes, expected %zd", PyList_GET_SIZE(prefixes),
                     PyList_GET_SIZE(suffixes), n);
        goto end;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *prefix = PyList_GET_ITEM(prefixes, i), *suffix = PyList_GET_ITEM(suffixes, i);
        if (is_bytes("prefix", prefix) || is_bytes("suffix", suffix)) goto end;
        size_t skipped = method_size(&of, of.lo + i);
        if (!skipped) goto end;
        total += PyBytes_GET_SIZE(prefix) + TAG_BYTES + PyBytes_GET_SIZE(suffix);
        total += size_of(&of, of.lo + i, skipped);
    }
    if (!(made = PyBytes_FromStringAndSize(NULL, total))) goto end;
    char *at = PyBytes_AS_STRING(made);
    for (Py_ssize_t i = 0; i < n; i++) {
        size_t skipped = method_size(&of, of.lo + i);
        at = put_bytes(at, PyList_GET_ITEM(prefixes, i));
        at = put_number(at, of.tag++, TAG_BYTES);
        at = put_bytes(at, PyList_GET_ITEM(suffixes, i));
        at = put(at, of.raw + of.cuts[of.lo + i] + skipped, size_of(&of, of.lo + i, skipped));
    }
end:
    PyBuffer_Release(&of.places);
    return made;
}

#define NUMBER_BYTES 4 /* of a frame's size, a delivery-id, a tag that counts */

/* Return the tag behind a text tag: seven bits in a byte, see text_tag. */
static uint32_t next_tag(uint32_t tag) {
    tag += 1;
    for (uint32_t carry = 0x80; tag & carry; carry <<= 8) {
        if (carry == 0x80000000) return 0;
        tag += carry;
    }
    return tag;
}

PyDoc_STRVAR(transfers_doc,
             "encode_transfers(before, between, behind, delivery_id, tag, raw, cuts, lo, hi, skip, frame_limit)\n\n"
             "before, between, behind: what stands around delivery-id and tag; tag: the first, as text_tag\n"
             "gives it. Raises ValueError where the cuts are not those of such messages in raw.");

static PyObject *transfers(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    Messages of;
    if (are_many(count, 11)) return NULL;
    PyObject *before = arguments[0], *between = arguments[1], *behind = arguments[2], *made = NULL;
    unsigned long long delivery_id = PyLong_AsUnsignedLongLong(arguments[3]);
    size_t skipped = PyLong_AsSize_t(arguments[9]);
    Py_ssize_t limit = PyLong_AsSsize_t(arguments[10]);
    if (PyErr_Occurred()) return NULL;
    if (is_bytes("before", before) || is_bytes("between", between) || is_bytes("behind", behind)) return NULL;
    if (take(&of, arguments + 4)) return NULL;
    Py_ssize_t around = 3 * NUMBER_BYTES + PyBytes_GET_SIZE(before) + PyBytes_GET_SIZE(between) +
                        PyBytes_GET_SIZE(behind);
    Py_ssize_t total = 0, end = of.lo;
    for (; end < of.hi; end++) {
        Py_ssize_t size = size_of(&of, end, skipped);
        if (size < 0) goto end;
        if (around + size > limit) break;
        total += around + size;
    }
    PyObject *frames = PyBytes_FromStringAndSize(NULL, total);
    if (!frames) goto end;
    char *at = PyBytes_AS_STRING(frames);
    uint32_t tag = (uint32_t)of.tag;
    for (Py_ssize_t i = of.lo; i < end; i++) {
        size_t size = of.cuts[i + 1] - of.cuts[i] - skipped;
        at = put_number(at, around + size, NUMBER_BYTES);
        at = put_bytes(at, before);
        at = put_number(at, delivery_id++, NUMBER_BYTES);
        at = put_bytes(at, between);
        at = put_number(at, tag, NUMBER_BYTES);
        at = put_bytes(at, behind);
        at = put(at, of.raw + of.cuts[i] + skipped, size);
        tag = next_tag(tag);
    }
    made = Py_BuildValue("(Nn)", frames, end);
end:
    PyBuffer_Release(&of.places);
    return made;
}

#define FRAME_END 0xCE

PyDoc_STRVAR(count_units_doc,
             "count_units(data, pos, end, unit, unit_size)\n\n"
             "Return how many stretches of unit_size bytes follow each other from pos on, before end, of which\n"
             "each begins with `unit` and ends as a frame does.");

static PyObject *count_units(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    if (are_many(count, 5)) return NULL;
    PyObject *data = arguments[0], *unit = arguments[3];
    Py_ssize_t pos = PyLong_AsSsize_t(arguments[1]), end = PyLong_AsSsize_t(arguments[2]);
    Py_ssize_t size = PyLong_AsSsize_t(arguments[4]);
    if (PyErr_Occurred()) return NULL;
    if (is_bytes("data", data) || is_bytes("unit", unit)) return NULL;
    if (pos < 0 || end > PyBytes_GET_SIZE(data) || size < 1 || size < PyBytes_GET_SIZE(unit)) {
        PyErr_Format(PyExc_ValueError, "units of %zd bytes, %zd of them equal, from %zd to %zd of %zd", size,
                     PyBytes_GET_SIZE(unit), pos, end, PyBytes_GET_SIZE(data));
        return NULL;
    }
    const char *at = PyBytes_AS_STRING(data), *same = PyBytes_AS_STRING(unit);
    long found = 0;
    for (; end - pos >= size; pos += size, found++)
        if ((unsigned char)at[pos + size - 1] != FRAME_END || memcmp(at + pos, same, PyBytes_GET_SIZE(unit))) break;
    return PyLong_FromLong(found);
}

static PyMethodDef functions[] = {
    {"encode_deliveries", (PyCFunction)(void (*)(void))deliveries, METH_FASTCALL, deliveries_doc},
    {"encode_mixed_deliveries", (PyCFunction)(void (*)(void))mixed_deliveries, METH_FASTCALL, mixed_deliveries_doc},
    {"count_units", (PyCFunction)(void (*)(void))count_units, METH_FASTCALL, count_units_doc},
    {"encode_transfers", (PyCFunction)(void (*)(void))transfers, METH_FASTCALL, transfers_doc},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "native", "Frames around messages, in C: see in_c.py.", -1, functions,
};

PyMODINIT_FUNC PyInit_native(void) { return PyModule_Create(&module); }
